"""The catalogue: which inputs each torch API is tested with, without a line of test code.

``caselist`` reads the list that ships with the package, ``choose`` picks from it what a command line asks for;
``specs`` makes arguments out of what the list says of them; ``names`` turns ``torch.nn.functional.softmax`` into the
callable; ``as_code`` writes cases as a test file, whose inputs ``draw`` draws. The list itself is made by
``scripts/export_torch_cases.py`` from torch's own samples (``record``), widened by sizes, special values and layouts
(``families``); with ``--ascend-live`` the same happens while tests are collected.
"""

from pytest_ascend.cases.catalogue.as_code import source
from pytest_ascend.cases.catalogue.choose import pendings

__all__ = ["pendings", "source"]
