"""The exceptions of ranks, in the test and in fixture teardowns, and the choice of one per rank."""

from __future__ import annotations

from enum import IntEnum

import pytest

from ddpsim.simulator.runtime.outcome import one_line
from ddpsim.simulator.runtime.rank_thread import RankReturned, RankUnwound

SKIPS = (pytest.skip.Exception, pytest.xfail.Exception)


class Severity(IntEnum):
    """The effect of an exception on the test; a higher one wins."""

    RETURNS = 0
    """An `EarlyReturn` fault, which ends the rank as if it had returned."""
    SKIPS = 1
    FAILS = 2
    LEAVES = 3
    """Ends the pytest session, or the current hypothesis example."""


def severity(error: BaseException) -> Severity:
    """Return the effect of an exception on the test."""
    # hypothesis steers its search by its own exceptions, for instance in `assume`.
    if isinstance(error, (KeyboardInterrupt, pytest.exit.Exception)) or type(error).__module__.startswith(
        "hypothesis."
    ):
        return Severity.LEAVES
    if isinstance(error, RankReturned):
        return Severity.RETURNS
    return Severity.SKIPS if isinstance(error, SKIPS) else Severity.FAILS


class Raised:
    """Collects the exceptions of the ranks of one run; the simulator gets only one per rank."""

    def __init__(self) -> None:
        self.by_tests: dict[int, BaseException] = {}
        """The errors of the test function, by rank, without those of fixture teardowns."""
        self.others: list[str] = []
        """A line for each further error of a rank."""

    def note(self, rank: int, error: BaseException) -> None:
        """Store an exception of the test function, unless it was raised while the ended run unwound the rank."""
        each: BaseException | None = error
        while each is not None and not isinstance(each, RankUnwound):
            each = each.__context__
        if each is None and severity(error) is Severity.FAILS:
            self.by_tests[rank] = error

    def most_severe(self, rank: int, errors: list[BaseException]) -> BaseException:
        """Return the exception that counts for a rank, the first of the most severe; note the others as lines."""
        chosen = max(errors, key=severity)
        self.others += [
            f"  rank {rank} also raised {one_line(error)}"
            for error in errors
            if error is not chosen and severity(error) is Severity.FAILS and not isinstance(error, RankUnwound)
        ]
        return chosen
