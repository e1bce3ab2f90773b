"""The command line `ddpsim`. It is a part of the package `ddpsim.scenarios`, because its commands run scenarios."""

from ddpsim.scenarios.cli.commands import main

__all__ = ["main"]
