"""The command line `ddpsim`. Its commands run scenarios, so it is a part of the package `ddpsim.scenarios`."""

from ddpsim.scenarios.cli.commands import main

__all__ = ["main"]
