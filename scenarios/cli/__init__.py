"""The command line `ddpsim`."""

from ddpsim.scenarios.cli.commands import main

__all__ = ["main"]
