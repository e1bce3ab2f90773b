"""The command line `ddpsim`."""

from scenarios.cli.commands import main

__all__ = ["main"]
