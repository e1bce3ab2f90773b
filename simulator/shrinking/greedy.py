"""The shrinker: runs passes that make a value simpler, as long as the result still fails.

It knows nothing of programs or schedules. A pass turns a value into simpler ones, the boldest first; the first of them
that still fails is the next value, and the pass starts anew from there. At the end no single step of any pass leads on:
the value is 1-minimal, which is not the least there is, for that might be two steps away at once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Code, Verdict


class Size(NamedTuple):
    """How large something that fails is. The smaller in this order is the simpler: first the ranks count, last choices.

    So a program of fewer ranks is simpler, however many calls it has, and a failure on the default schedule is simpler
    than one of the same program on any other (shortlex, as Hypothesis orders what it draws).
    """

    ranks: int
    steps: int
    """Of a program, those of all ranks; of a training, the iterations of all ranks."""
    calls: int = 0
    """Of a program, those of all ranks; of a training, its networks, its faults and what its exceptions name."""
    groups: int = 0
    """Besides the default one."""
    shapes: int = 0
    """How far numbers are from the plain ones: shapes, splits, roots and tags; rows and the networks' options."""
    options: int = 0
    """How far words are from the plainest: dtypes, reductions, networks, features; and waits later than their call."""
    switches: int = 0
    """Choices of the schedule that are not the default."""
    choices: int = 0
    """How many choices come before the last switch, with it."""
    total: int = 0
    """All choices added up."""

    def under(self, choices: Sequence[int]) -> Size:
        """The size of the same under a schedule."""
        return self._replace(switches=sum(1 for each in choices if each), choices=len(choices), total=sum(choices))


Value = TypeVar("Value")

ShrinkPass = Callable[[Value], Iterable[Value]]
"""Simpler values than this one, the boldest first."""


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Value]):
    """The result of trying a value."""

    failed: Value | None
    """The value as it failed, which may be simpler than what was tried, or under another schedule; None if it did not.
    """
    executions: int = 1


class End(Enum):
    """Why a shrinking ended."""

    MINIMAL = "minimal"
    """No single step makes it simpler."""
    BUDGET = "budget"
    INTERRUPT = "interrupt"
    """Ctrl-C."""
    FLAKY = "flaky"
    """Run once more, it did not fail in the same way: what it does, something besides its schedule decides. Found by
    those who run it again, not here."""


class ShrinkProgress(NamedTuple):
    """How far a shrinking has come."""

    executions: int
    size: Size
    """The size of the simplest value so far."""
    seconds: float


OnShrinkProgress = Callable[[ShrinkProgress], object]


@dataclass(frozen=True, slots=True)
class Shrunk(Generic[Value]):
    """The result of shrinking."""

    value: Value
    """The simplest failing value found."""
    size: Size
    tries: int
    """Values that were tried."""
    executions: int
    """Runs that they took."""
    end: End
    seconds: float

    @property
    def is_minimal(self) -> bool:
        """True if no single step makes it simpler; if not, a simpler one may exist."""
        return self.end is End.MINIMAL


def shrink(
    value: Value,
    passes: Sequence[ShrinkPass[Value]],
    attempt: Callable[[Value], Attempt[Value]],
    *,
    size: Callable[[Value], Size],
    budget: Budget,
    key: Callable[[Value], Hashable] = lambda value: value,
    on_progress: OnShrinkProgress | None = None,
) -> Shrunk[Value]:
    """Make `value`, which fails, simpler as long as it fails.

    What a pass gives is tried only if its size is smaller, and once: values are alike if their keys are. The budget
    is for all executions together. Ctrl-C ends it, too, and the simplest so far is returned.
    """
    return _Shrinking(value, passes, attempt, size, budget, key, on_progress).to_its_end()


class _SpentError(Exception):
    """The budget is used up."""


class _Shrinking(Generic[Value]):
    """One shrinking, and the simplest value so far."""

    def __init__(
        self,
        value: Value,
        passes: Sequence[ShrinkPass[Value]],
        attempt: Callable[[Value], Attempt[Value]],
        size: Callable[[Value], Size],
        budget: Budget,
        key: Callable[[Value], Hashable],
        on_progress: OnShrinkProgress | None,
    ) -> None:
        self._simplest, self._size = value, size(value)
        self._passes, self._attempt, self._size_of, self._key = passes, attempt, size, key
        self._budget = budget
        self._on_progress = on_progress
        self._tried = {key(value)}
        self._tries = 0
        self._executions = 0
        self._started = time.monotonic()

    def to_its_end(self) -> Shrunk[Value]:
        """Run all passes repeatedly, until none makes the value simpler."""
        try:
            while self._has_gone_round():
                pass
            end = End.MINIMAL
        except _SpentError:
            end = End.BUDGET
        except KeyboardInterrupt:
            end = End.INTERRUPT
        return Shrunk(self._simplest, self._size, self._tries, self._executions, end, self._seconds)

    def _has_gone_round(self) -> bool:
        """Run each pass to its end; True if the value became simpler."""
        before = self._size
        for shrink_pass in self._passes:
            while any(self._fails(simpler) for simpler in shrink_pass(self._simplest)):
                pass
        return self._size < before

    def _fails(self, value: Value) -> bool:
        """Try a value that was not tried before; if it fails and is simpler, it is the simplest now."""
        if self._size_of(value) >= self._size or (key := self._key(value)) in self._tried:
            return False
        if self._executions >= self._budget.executions or self._seconds >= self._budget.seconds:
            raise _SpentError
        self._tried.add(key)
        tried = self._attempt(value)
        self._tries += 1
        self._executions += tried.executions
        failed = tried.failed
        is_simpler = failed is not None and self._size_of(failed) < self._size
        if failed is not None and is_simpler:
            self._simplest, self._size = failed, self._size_of(failed)
            self._tried.add(self._key(failed))
        self._tell()
        return is_simpler

    def _tell(self) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(ShrinkProgress(self._executions, self._size, self._seconds))
        except Exception as error:  # what is found is worth more than who watches it
            self._on_progress = None
            warnings.warn(f"on_progress raised {error!r}, and is not called any more", stacklevel=2)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started


class Failure(NamedTuple):
    """The features that equal failures share."""

    code: Code
    """The code of the first finding."""
    error: type[BaseException] | None
    """What was raised, where that is the finding: of the many errors that a rank can raise, no other will do."""

    def is_that_of(self, result: Result) -> bool:
        """True if the run failed in this way."""
        return result.verdict is Verdict.FAIL and _failure(result) == self


def failure_of(result: Result, name: str) -> Failure:
    """How a run failed. Raises UsageError if it did not; `name` is what the user calls it."""
    if result.verdict is not Verdict.FAIL:
        not_struck = f" ({result.not_struck})" if result.not_struck else ""
        raise UsageError(
            f"{name} comes to {result.verdict.value} under this schedule{not_struck}, expected a failure to shrink: "
            "give the schedule that it fails under"
        )
    return _failure(result)


def _failure(result: Result) -> Failure:
    code = result.findings[0].code
    error = next(iter(result.errors.values()), None) if code is Code.RANK_ERROR else None
    return Failure(code, None if error is None else type(error))
