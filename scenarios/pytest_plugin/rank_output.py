"""Captures what each rank of a test prints, and collects what ranks raise.

The simulator swaps `sys.stdout` and `sys.stderr` at every context switch, so each rank that starts installs its own
streams. Threads of a rank print into the rank's streams. Output of C++ code and subprocesses goes to pytest's capture
of the whole test.
"""

import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NoReturn, TextIO

import pytest

from ddpsim.simulator.errors import error_line
from ddpsim.simulator.runtime.rank_thread import RankReturned, RankUnwound
from ddpsim.simulator.wording import count_with_noun

SKIPS = (pytest.skip.Exception, pytest.xfail.Exception)
_CAPTURING = frozenset({"capsys", "capsysbinary", "capfd", "capfdbinary", "capteesys"})
"""Fixtures with which the test itself reads the printed output. With one of them, ranks print into pytest's capture."""


class RankStream(io.TextIOWrapper):
    """The stdout or stderr of a rank, kept in memory."""

    def __init__(self, below: TextIO | None) -> None:
        self._below = below
        self._written = io.BytesIO()
        super().__init__(self._written, encoding="utf-8", errors="backslashreplace", newline="", write_through=True)

    def fileno(self) -> int:
        """Return the file descriptor of the process's stream. Subprocesses write there, not into the rank's text."""
        if self._below is None:
            raise io.UnsupportedOperation("fileno")
        return self._below.fileno()

    @property
    def text(self) -> str:
        """The whole text written so far."""
        return self._written.getvalue().decode(errors="replace")


class Severity(IntEnum):
    """The effect of an exception on the test. If ranks raise several, the highest severity counts."""

    RETURNS = 0
    """The rank returns early, because of an injected `EarlyReturn` fault."""
    SKIPS = 1
    FAILS = 2
    LEAVES = 3
    """The exception has to leave the test: it ends the pytest session, or the current hypothesis example."""


def severity_of_error(error: BaseException) -> Severity:
    """Return the effect of an exception on the test."""
    # hypothesis steers its search by its own exceptions, for instance in `assume`.
    is_of_hypothesis = type(error).__module__.startswith("hypothesis.")
    if is_of_hypothesis or isinstance(error, (KeyboardInterrupt, pytest.exit.Exception)):
        return Severity.LEAVES
    if isinstance(error, RankReturned):
        return Severity.RETURNS
    return Severity.SKIPS if isinstance(error, SKIPS) else Severity.FAILS


class RankOutput:
    """The printed text and the exceptions of the ranks of one run; the simulator gets only one exception per rank."""

    def __init__(self, item: pytest.Function) -> None:
        is_captured = item.config.getoption("capture", "no") in ("fd", "sys")
        self._is_kept = is_captured and _CAPTURING.isdisjoint(item.fixturenames)
        self._streams: dict[int, tuple[RankStream, RankStream]] = {}
        self.errors_of_tests: dict[int, BaseException] = {}
        """The errors of the test function, by rank, without those of fixture teardowns."""
        self.further_errors: list[str] = []

    def note_error(self, rank: int, error: BaseException) -> None:
        """Store an exception of the test function, unless ddpsim raised it to end a rank's program after the run."""
        each: BaseException | None = error
        while each is not None and not isinstance(each, RankUnwound):
            each = each.__context__
        if each is None and severity_of_error(error) is Severity.FAILS:
            self.errors_of_tests[rank] = error

    def most_severe_error(self, rank: int, errors: list[BaseException]) -> BaseException:
        """Return the exception that counts for a rank: the first of the most severe. Keep the others as text."""
        chosen = max(errors, key=severity_of_error)
        self.further_errors += [
            f"  rank {rank} also raised {error_line(error)}"
            for error in errors
            if error is not chosen and severity_of_error(error) is Severity.FAILS and not isinstance(error, RankUnwound)
        ]
        return chosen

    def install_streams(self, rank: int) -> None:
        """Install the streams of a rank; called on the rank before its program starts."""
        if self._is_kept:
            streams = RankStream(sys.stdout), RankStream(sys.stderr)
            sys.stdout, sys.stderr = self._streams[rank] = streams

    def drop_last_run(self) -> None:
        """Drop the output of the last run; called before the next one."""
        self._streams, self.errors_of_tests, self.further_errors = {}, {}, []

    def add_report_sections(self, item: pytest.Item) -> None:
        """Add to the report of a test a section for each rank's stdout and stderr."""
        for rank, streams in sorted(self._streams.items()):
            for name, stream in zip(("stdout", "stderr"), streams, strict=True):
                if stream.text:
                    item.add_report_section("call", f"{name} rank {rank}", stream.text)


_SUBTESTS = getattr(pytest, "Subtests", ())  # from pytest 9 on


class RankSubtests:
    """The `subtests` fixture of one rank."""

    def __init__(self, subtests: Any, rank: int) -> None:
        self._subtests = subtests
        self._rank = rank
        self.failed = 0

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
                if isinstance(error, RankUnwound) or severity_of_error(error) in (Severity.RETURNS, Severity.LEAVES):
                    leaving = error
                    _skip_unfinished_subtest()  # pytest would report it as a failure
                self.failed += severity_of_error(error) is Severity.FAILS
                raise
        sys.stdout, sys.stderr = streams  # pytest has installed the streams of the whole test
        if leaving is not None:
            raise leaving


def _skip_unfinished_subtest() -> NoReturn:
    """Raise a skip from a frame that pytest shows, because pytest reports where a skip was raised."""
    pytest.skip("the run ended before the subtest did")


@contextmanager
def subtests_of_rank(rank: int, named: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a test's arguments, with this rank's `subtests` in them. Afterwards, fail the test if a subtest failed."""
    __tracebackhide__ = True
    own = {name: RankSubtests(value, rank) for name, value in named.items() if isinstance(value, _SUBTESTS)}
    yield {**named, **own}
    failed = sum(each.failed for each in own.values())
    if failed:
        pytest.fail(f"contains {count_with_noun(failed, 'failed subtest')}", pytrace=False)
