"""How results are judged: numbers only, no device, no pytest, no file.

``verdict`` (the words; standard library only), ``structure`` (nested outputs), ``metrics`` (how far apart),
``standards`` (the criteria), ``compare`` (all of it together). This package loads nothing by itself: import the module
you need.
"""
