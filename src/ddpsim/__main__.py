"""Runs the command line `ddpsim`, for `python -m ddpsim`."""

import sys

from ddpsim.scenarios.cli import main

if __name__ == "__main__":
    sys.exit(main())
