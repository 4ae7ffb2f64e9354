"""Lets these tests import ``dumped``, which writes dumps for them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
