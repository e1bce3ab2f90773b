"""Lets the tests of this folder import the examples beside them, from wherever pytest is started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
