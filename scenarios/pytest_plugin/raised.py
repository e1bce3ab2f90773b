"""What ranks raised, in the test and behind the `yield` of their fixtures, and which error of a rank counts."""

from __future__ import annotations

from enum import IntEnum

import pytest

from ddpsim.simulator.runtime.outcome import one_line
from ddpsim.simulator.runtime.rank_thread import RankReturned, RankUnwound

SKIPS = (pytest.skip.Exception, pytest.xfail.Exception)


class Severity(IntEnum):
    """What an error means for the test, in the order in which they win."""

    RETURNS = 0
    """It is a fault's, which ends the rank as if it had returned."""
    SKIPS = 1
    FAILS = 2
    LEAVES = 3
    """The session, or an example that hypothesis drew."""


def severity(error: BaseException) -> Severity:
    """What an error means for the test."""
    # What hypothesis raises steers its search: `assume`, or an example that asks for too much.
    if isinstance(error, (KeyboardInterrupt, pytest.exit.Exception)) or type(error).__module__.startswith(
        "hypothesis."
    ):
        return Severity.LEAVES
    if isinstance(error, RankReturned):
        return Severity.RETURNS
    return Severity.SKIPS if isinstance(error, SKIPS) else Severity.FAILS


class Raised:
    """What the ranks of one run raised: of several errors of a rank, the simulator is handed one."""

    def __init__(self) -> None:
        self.by_tests: dict[int, BaseException] = {}
        """How the test failed on ranks, by rank, whatever came of what stands behind the `yield` of their fixtures."""
        self.others: list[str] = []
        """A line for each error that another one of its rank stands before."""

    def note(self, rank: int, error: BaseException) -> None:
        """The test has raised on a rank. What it raises on its way out of a finished run is a consequence."""
        each: BaseException | None = error
        while each is not None and not isinstance(each, RankUnwound):
            each = each.__context__
        if each is None and severity(error) is Severity.FAILS:
            self.by_tests[rank] = error

    def most_severe(self, rank: int, errors: list[BaseException]) -> BaseException:
        """What the rank comes to that raised these, the test's own first; the others are noted."""
        chosen = max(errors, key=severity)
        self.others += [
            f"  rank {rank} also raised {one_line(error)}"
            for error in errors
            if error is not chosen and severity(error) is Severity.FAILS and not isinstance(error, RankUnwound)
        ]
        return chosen
