"""The shrinker: runs passes that make a failing value simpler, as long as the result still fails.

A pass turns a value into simpler values, the largest change first. The first of these that still fails is the next
value, and the pass starts again from there. At the end no single step of any pass gives a simpler failing value: the
value is 1-minimal. A simpler value may exist that takes two steps at once.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.exploration.explorer import report_progress
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Code, Verdict


class FailureSize(NamedTuple):
    """The size of a failing program and its schedule. Sizes compare field by field, and the smaller one is simpler.

    A program with fewer ranks is simpler, however many calls it has. The default schedule is simpler than any other one
    (shortlex order, as in Hypothesis).
    """

    ranks: int
    steps: int
    """The steps of all ranks of a program, or the iterations of all ranks of a training."""
    calls: int = 0
    """The calls of all ranks of a program; for a training, its networks, faults and named exceptions."""
    groups: int = 0
    """The number of process groups except the default one."""
    shapes: int = 0
    """How far numbers are from the plainest ones: shapes, splits, roots, tags, rows and options of networks."""
    options: int = 0
    """How far words (dtypes, reductions, ...) are from the plainest ones, plus waits that do not follow their call."""
    switches: int = 0
    """The number of choices of the schedule that are not the default."""
    choices: int = 0
    """The number of choices up to and including the last choice that is not the default."""
    total: int = 0
    """The sum of all choices, which are indices of options."""

    def with_schedule(self, choices: Sequence[int]) -> "FailureSize":
        """Return the size of the same program under a schedule."""
        return self._replace(switches=sum(1 for each in choices if each), choices=len(choices), total=sum(choices))


Value = TypeVar("Value")

ShrinkPass = Callable[[Value], Iterable[Value]]
"""A function that yields values which are simpler than the given value, the largest change first."""


@dataclass(frozen=True, slots=True)
class ShrinkAttempt(Generic[Value]):
    """The result of trying a value."""

    failed: Value | None
    """The failing value: the tried one, a simpler one, or one with another schedule. None if it did not fail."""
    executions: int = 1


class ShrinkEnd(Enum):
    """The reason why a shrinking ended."""

    MINIMAL = "minimal"
    """No single step makes the value simpler."""
    BUDGET = "budget"
    INTERRUPT = "interrupt"
    """The user pressed Ctrl-C."""
    FLAKY = "flaky"
    """The simplest value did not fail in the same way when run again: something besides its schedule decides."""


class ShrinkProgress(NamedTuple):
    """The progress of a shrinking."""

    executions: int
    size: FailureSize
    """The size of the simplest value so far."""
    seconds: float


OnShrinkProgress = Callable[[ShrinkProgress], object]


@dataclass(frozen=True, slots=True)
class ShrunkValue(Generic[Value]):
    """The result of shrinking."""

    value: Value
    """The simplest failing value found."""
    size: FailureSize
    tries: int
    executions: int
    end: ShrinkEnd
    seconds: float

    @property
    def is_minimal(self) -> bool:
        """Return whether no single step makes the value simpler; otherwise a simpler failing value may exist."""
        return self.end is ShrinkEnd.MINIMAL


def shrink_value(
    value: Value,
    passes: Sequence[ShrinkPass[Value]],
    attempt: Callable[[Value], ShrinkAttempt[Value]],
    *,
    size: Callable[[Value], FailureSize],
    budget: Budget,
    key: Callable[[Value], Hashable] = lambda value: value,
    on_progress: OnShrinkProgress | None = None,
) -> ShrunkValue[Value]:
    """Make `value`, which fails, simpler as long as it fails.

    A value from a pass is tried if its size is smaller and no value with the same key was tried before. The budget is
    for all executions together. After Ctrl-C the simplest value so far is returned.
    """
    return _Shrinking(value, passes, attempt, size, budget, key, on_progress).run_to_end()


class _BudgetSpentError(Exception):
    """The budget is used up."""


@dataclass
class _Shrinking(Generic[Value]):
    """One shrinking, and the simplest value so far."""

    _simplest: Value
    _passes: Sequence[ShrinkPass[Value]]
    _attempt: Callable[[Value], ShrinkAttempt[Value]]
    _size_of: Callable[[Value], FailureSize]
    _budget: Budget
    _key: Callable[[Value], Hashable]
    _on_progress: OnShrinkProgress | None
    _tries: int = 0
    _executions: int = 0
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._size = self._size_of(self._simplest)
        self._tried = {self._key(self._simplest)}

    def run_to_end(self) -> ShrunkValue[Value]:
        """Run all passes again and again, until no pass makes the value simpler."""
        try:
            while self._run_passes():
                pass
            end = ShrinkEnd.MINIMAL
        except _BudgetSpentError:
            end = ShrinkEnd.BUDGET
        except KeyboardInterrupt:
            end = ShrinkEnd.INTERRUPT
        return ShrunkValue(self._simplest, self._size, self._tries, self._executions, end, self._elapsed_seconds)

    def _run_passes(self) -> bool:
        """Run each pass until it finds nothing more; return whether the value became simpler."""
        before = self._size
        for shrink_pass in self._passes:
            while any(self._try_value(simpler) for simpler in shrink_pass(self._simplest)):
                pass
        return self._size < before

    def _try_value(self, value: Value) -> bool:
        """Try a value unless it was tried before; if the value fails and is simpler, it becomes the simplest value."""
        if self._size_of(value) >= self._size or (key := self._key(value)) in self._tried:
            return False
        if self._executions >= self._budget.executions or self._elapsed_seconds >= self._budget.seconds:
            raise _BudgetSpentError
        self._tried.add(key)
        tried = self._attempt(value)
        self._tries += 1
        self._executions += tried.executions
        failed = tried.failed
        is_simpler = failed is not None and self._size_of(failed) < self._size
        if failed is not None and is_simpler:
            self._simplest, self._size = failed, self._size_of(failed)
            self._tried.add(self._key(failed))
        progress = ShrinkProgress(self._executions, self._size, self._elapsed_seconds)
        self._on_progress = report_progress(self._on_progress, progress)
        return is_simpler

    @property
    def _elapsed_seconds(self) -> float:
        return time.monotonic() - self._started


class FailureKind(NamedTuple):
    """The features that two runs share if they fail in the same way."""

    code: Code
    error: type[BaseException] | None
    """The type of the exception, if the first finding is that a rank raised one."""

    def matches_result(self, result: Result) -> bool:
        """Return whether a run failed in this way, given its result."""
        return result.verdict is Verdict.FAIL and _failure_kind(result) == self


def failure_kind_of(result: Result, name: str) -> FailureKind:
    """Return how a run failed. Raises UsageError if the run did not fail; `name` is the user's name for the program."""
    if result.verdict is not Verdict.FAIL:
        not_struck = f" ({result.not_struck})" if result.not_struck else ""
        raise UsageError(
            f"the verdict of {name} under this schedule is {result.verdict.value}{not_struck}, expected a failure to "
            "shrink: give a schedule under which it fails"
        )
    return _failure_kind(result)


def _failure_kind(result: Result) -> FailureKind:
    code = result.findings[0].code
    error = next(iter(result.errors.values()), None) if code is Code.RANK_ERROR else None
    return FailureKind(code, None if error is None else type(error))
