"""The `subtests` fixture on ranks: each subtest shows its rank, and a failing one fails the test on that rank.

pytest reports a subtest as soon as it ends. The replay line needs the schedule of the whole run, so it is in the report
of the test, not of the subtest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from ddpsim.scenarios.pytest_plugin.rank_output import Severity, severity_of
from ddpsim.simulator.runtime.rank_thread import RankUnwound

_SUBTESTS = getattr(pytest, "Subtests", ())  # from pytest 9 on


class RankSubtests:
    """The `subtests` fixture of one rank."""

    def __init__(self, subtests: Any, rank: int) -> None:
        self._subtests = subtests
        self._rank = rank
        self.failed = 0
        """Number of failed subtests on this rank."""

    @contextmanager
    def test(self, msg: str | None = None, **kwargs: Any) -> Iterator[None]:
        """Run a block as a pytest subtest.

        An exception that ends the whole rank or run is raised outside of the subtest, too.
        """
        __tracebackhide__ = True
        streams, leaving = (sys.stdout, sys.stderr), None
        with self._subtests.test(msg, **{**kwargs, "rank": self._rank}):
            try:
                yield
            except BaseException as error:
                if isinstance(error, RankUnwound) or severity_of(error) in (Severity.RETURNS, Severity.LEAVES):
                    leaving = error
                    _skip_unfinished_subtest()  # pytest would report it as a failure
                self.failed += severity_of(error) is Severity.FAILS
                raise
        sys.stdout, sys.stderr = streams  # pytest has installed the streams of the whole test
        if leaving is not None:
            raise leaving


def _skip_unfinished_subtest() -> NoReturn:
    """Raise the skip from a frame that pytest shows, because pytest reports where a skip was raised."""
    pytest.skip("the run ended before the subtest did")


@contextmanager
def subtests_of_rank(rank: int, named: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a test's arguments, with this rank's `subtests` in them. Afterwards, fail the test if a subtest failed."""
    __tracebackhide__ = True
    own = {name: RankSubtests(value, rank) for name, value in named.items() if isinstance(value, _SUBTESTS)}
    yield {**named, **own}
    failed = sum(each.failed for each in own.values())
    if failed:
        pytest.fail(f"contains {failed} failed subtest{'s' * (failed > 1)}", pytrace=False)
