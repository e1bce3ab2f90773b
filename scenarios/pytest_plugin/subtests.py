"""`subtests` on ranks: pytest's own, each of which says its rank, and fails its test on that rank.

pytest reports a subtest when it ends, and the test goes on. Its replay line has the schedule of the whole run, which
nobody knows before its end, so it stands with the test.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from ddpsim.scenarios.pytest_plugin.raised import Severity, severity
from ddpsim.simulator.runtime.rank_thread import RankUnwound

_SUBTESTS = getattr(pytest, "Subtests", ())  # from pytest 9 on


class RankSubtests:
    """The fixture as one rank has it."""

    def __init__(self, subtests: Any, rank: int) -> None:
        self._subtests = subtests
        self._rank = rank
        self.failed = 0
        """How many subtests failed on this rank."""

    @contextmanager
    def test(self, msg: str | None = None, **kwargs: Any) -> Iterator[None]:
        """A subtest of pytest's. What ends the run, or the rank, in it goes on its way."""
        __tracebackhide__ = True
        streams, leaving = (sys.stdout, sys.stderr), None
        with self._subtests.test(msg, **{**kwargs, "rank": self._rank}):
            try:
                yield
            except BaseException as error:
                if isinstance(error, RankUnwound) or severity(error) in (Severity.RETURNS, Severity.LEAVES):
                    leaving = error
                    _skip_the_rest()  # pytest would take it for a failure
                self.failed += severity(error) is Severity.FAILS
                raise
        sys.stdout, sys.stderr = streams  # pytest has put those of the whole test in their place
        if leaving is not None:
            raise leaving


def _skip_the_rest() -> NoReturn:
    """From a frame that is not hidden: pytest says where a skip comes from."""
    pytest.skip("the run was over before the subtest")


@contextmanager
def subtests_on(rank: int, named: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a test, with subtests of the rank's own; at the end the test fails if any of those did."""
    __tracebackhide__ = True
    own = {name: RankSubtests(value, rank) for name, value in named.items() if isinstance(value, _SUBTESTS)}
    yield {**named, **own}
    failed = sum(each.failed for each in own.values())
    if failed:
        pytest.fail(f"contains {failed} failed subtest{'s' * (failed > 1)}", pytrace=False)
