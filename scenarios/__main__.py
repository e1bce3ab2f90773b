"""`python -m scenarios` is the command `ddpsim`."""

import sys

from scenarios.cli import main

if __name__ == "__main__":
    sys.exit(main())
