"""The command line `ddpsim`: its commands run scenarios, so it is in the package of scenarios."""

from ddpsim.scenarios.cli.commands import main

__all__ = ["main"]
