"""How results are judged: numbers only, no device, no pytest, no file.

``verdict`` (the words; standard library only), ``structure`` (nested outputs), ``metrics`` (how far apart), ``standards``
(the criteria), ``compare`` (all of it together). Import the module you need: this package loads nothing by itself.
"""
