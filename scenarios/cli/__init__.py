"""The command line `ddpsim`.

This package holds no scenarios. It is in scenarios/ because its commands run them and import their model.
"""

from ddpsim.scenarios.cli.commands import main

__all__ = ["main"]
