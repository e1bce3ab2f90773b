"""The public function `shrink`: the simplest schedule under which a program fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddpsim.simulator.api import replay, simulate
from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Schedule
from ddpsim.simulator.policies.schedule_replay import Guided
from ddpsim.simulator.result import Result
from ddpsim.simulator.shrinking.greedy import Attempt, End, OnShrinkProgress, Size, failure_of
from ddpsim.simulator.shrinking.greedy import shrink as shrink_greedily
from ddpsim.simulator.shrinking.schedule_passes import PASSES, Choices, stripped

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddpsim.simulator.run_options import ReplayKeywords

SHRINKING_BUDGET = Budget(executions=5000, seconds=60.0)
"""The default budget of a shrinking."""


@dataclass(frozen=True, slots=True)
class ShrunkSchedule:
    """The result of shrinking a schedule."""

    schedule: Schedule
    """The simplest schedule found that fails in the same way; `str(schedule)` is its replay token."""
    result: Result
    """A further run under that schedule; if `end` is flaky, it did not fail in the same way."""
    executions: int
    end: End
    seconds: float

    @property
    def is_minimal(self) -> bool:
        """Return whether no single step makes the schedule simpler; otherwise a simpler one may exist."""
        return self.end is End.MINIMAL


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
    failure = failure_of(failed, failed.program)
    start = failed.schedule.start

    def attempt(choices: Choices) -> Attempt[Choices]:
        result = simulate(program, world_size, policy=Guided(choices, start), **options)
        return Attempt(stripped(result.schedule.choices) if failure.is_that_of(result) else None)

    shrunk = shrink_greedily(
        stripped(failed.schedule.choices),
        PASSES,
        attempt,
        size=Size(world_size, 0).under,
        budget=budget or SHRINKING_BUDGET,
        on_progress=on_progress,
    )
    result = simulate(program, world_size, policy=Guided(shrunk.value, start), **options)
    simplest = Schedule(shrunk.value, result.schedule.program, result.schedule.start)
    end = shrunk.end if failure.is_that_of(result) else End.FLAKY
    return ShrunkSchedule(simplest, result, shrunk.executions, end, shrunk.seconds)
