"""The public function `shrink`, which finds the simplest schedule under which a program fails, and its passes.

A pass makes a schedule simpler: fewer switches (choices that are not the default), then fewer choices, then smaller
ones. A changed schedule may lead to other choice points: `GuidedPolicy` applies the choices modulo the options there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ddpsim.simulator.api import replay, simulate
from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Schedule, without_trailing_defaults
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.result import Result
from ddpsim.simulator.shrinking.greedy import FailureSize, OnShrinkProgress, ShrinkAttempt, ShrinkEnd, failure_kind_of
from ddpsim.simulator.shrinking.greedy import shrink_value as shrink_greedily
from ddpsim.simulator.shrinking.structure import smaller_numbers, with_one_simpler, without_one_block

Choices = tuple[int, ...]

_MOST_SINGLE = 60
"""The most positions that are tried for a single switch (a choice that is not the default), and the most pairs of
switches that are removed together."""

_LEAST_LARGEST = 3
"""For one switch, each option up to this is tried, even if no choice is so large: an earlier one may need it."""
_MOST_REGROUPED = 8
"""At most this many switches are regrouped; more switches are first removed one by one."""
_MOST_MERGED = 9
"""The most choices that are tried in place of two switches, besides the sum of the two."""


def truncate_choices(choices: Choices) -> Iterator[Choices]:
    """Yield shorter schedules: no choices, then the first half, the first three quarters, ... all but the last."""
    left = len(choices)
    while left:
        yield without_trailing_defaults(choices[: len(choices) - left])
        left //= 2


def zero_switches(choices: Choices) -> Iterator[Choices]:
    """Yield schedules in which a block of switches (choices that are not the default) is replaced by the default."""
    for kept in without_one_block(_switch_indices(choices)):
        yield without_trailing_defaults(tuple(choice if index in kept else 0 for index, choice in enumerate(choices)))


def zero_switch_pairs(choices: Choices) -> Iterator[Choices]:
    """Yield schedules in which two of the switches are replaced by the default choice."""
    switches = _switch_indices(choices)
    pairs = [(one, other) for index, one in enumerate(switches) for other in switches[:index]]
    for pair in pairs[:_MOST_SINGLE]:
        yield without_trailing_defaults(tuple(0 if index in pair else choice for index, choice in enumerate(choices)))


def merge_switches(choices: Choices) -> Iterator[Choices]:
    """Yield schedules in which one switch replaces two consecutive switches, at the place of the first of the two."""
    switches = _switch_indices(choices)
    for first, second in pairwise(switches):
        both, turn = choices[first] + choices[second], (0,) * (second - first)
        for choice in (*range(1, min(both, _MOST_MERGED)), both):
            yield without_trailing_defaults((*choices[:first], choice, *turn, *choices[second + 1 :]))


def regroup_switches(choices: Choices) -> Iterator[Choices]:
    """Replace two consecutive switches by one, and move the choices between them elsewhere, if switches are few.

    Two turns of a rank become one, earlier or later.
    """
    switches = _switch_indices(choices)
    for first, second in pairwise(switches) if len(switches) <= _MOST_REGROUPED else ():
        turn = (0,) * (second - first)
        for choice in range(1, choices[first] + choices[second] + 1):
            before, behind = choices[:first], choices[second + 1 :]
            for index in (index for index in switches if index <= first):
                yield (*before[:index], *turn, *before[index:], choice, *behind)
            for index in (index - second - 1 for index in (*switches, len(choices)) if index > second):
                yield without_trailing_defaults((*before, choice, *behind[:index], *turn, *behind[index:]))


def use_single_switch(choices: Choices) -> Iterator[Choices]:
    """Yield schedules in which one switch replaces all switches, the earliest place first."""
    for index in range(min(len(choices), _MOST_SINGLE)):
        for choice in range(1, max(_LEAST_LARGEST, *choices) + 1):
            yield (*(0,) * index, choice)


def remove_choices(choices: Choices) -> Iterator[Choices]:
    """Yield schedules without a block of choices, so that later choices come earlier."""
    yield from map(without_trailing_defaults, without_one_block(choices))


def make_choices_smaller(choices: Choices) -> Iterator[Choices]:
    """Yield schedules in which one choice is replaced by 1, by half of its value, or by one less."""
    return with_one_simpler(choices, smaller_numbers)


def _switch_indices(choices: Choices) -> list[int]:
    return [index for index, choice in enumerate(choices) if choice]


PASSES = (
    truncate_choices,
    zero_switches,
    zero_switch_pairs,
    merge_switches,
    regroup_switches,
    use_single_switch,
    remove_choices,
    make_choices_smaller,
)
"""The passes for schedules, in the order in which they run."""


if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddpsim.simulator.run_options import ReplayKeywords

SHRINKING_BUDGET = Budget(executions=5000, seconds=60.0)


@dataclass(frozen=True, slots=True)
class ShrunkSchedule:
    """The result of shrinking a schedule."""

    schedule: Schedule
    """The simplest schedule found that fails in the same way; `str(schedule)` is its replay token."""
    result: Result
    """A further run under that schedule; if `end` is flaky, it did not fail in the same way."""
    executions: int
    end: ShrinkEnd
    seconds: float

    @property
    def is_minimal(self) -> bool:
        """Return whether no single step makes the schedule simpler; otherwise a simpler failing schedule may exist."""
        return self.end is ShrinkEnd.MINIMAL


def shrink(
    program: Callable[..., Any] | Sequence[str],
    world_size: int,
    schedule: str | Schedule,
    *,
    budget: Budget | None = None,
    on_progress: OnShrinkProgress | None = None,
    **options: Unpack[ReplayKeywords],
) -> ShrunkSchedule:
    """Find the simplest schedule under which `program`, a function or a command, fails as it does under `schedule`.

    Failures are equal if the codes of their first findings are. A schedule is simpler with fewer switches, then with
    fewer choices, then with smaller ones. The budget for all runs together is 5000 executions and 60 seconds unless
    given. After Ctrl-C the simplest schedule so far is returned. The options are those of `simulate`. To reduce also
    ranks, or a declared program, use `ddpsim.scenarios.shrink_scenario`.

    Raises UsageError as `simulate` and `replay` do, and if the program does not fail under `schedule`.
    """
    failed = replay(program, world_size, schedule, **options)
    failure = failure_kind_of(failed, failed.program)
    start = failed.schedule.start

    def attempt(choices: Choices) -> ShrinkAttempt[Choices]:
        result = simulate(program, world_size, policy=GuidedPolicy(choices, start), **options)
        made = without_trailing_defaults(result.schedule.choices)
        return ShrinkAttempt(made if failure.matches_result(result) else None)

    shrunk = shrink_greedily(
        without_trailing_defaults(failed.schedule.choices),
        PASSES,
        attempt,
        size=FailureSize(world_size, 0).with_schedule,
        budget=budget or SHRINKING_BUDGET,
        on_progress=on_progress,
    )
    result = simulate(program, world_size, policy=GuidedPolicy(shrunk.value, start), **options)
    simplest = Schedule(shrunk.value, result.schedule.program, result.schedule.start)
    end = shrunk.end if failure.matches_result(result) else ShrinkEnd.FLAKY
    return ShrunkSchedule(simplest, result, shrunk.executions, end, shrunk.seconds)
