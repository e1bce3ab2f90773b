"""Attempts one test under many schedules, and finds out whether its outcome depends on them.

Half of the schedules are random, because they differ most; the others are those that dpor chooses, because it soon runs
what may matter. A failing and a passing schedule are brought as close together as the budget allows, so that what
differs is one choice.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from ddpsim import Policy, Result, Schedule, Verdict
from ddpsim.scenarios.test_suites.ranks_of_test import Attempt
from ddpsim.simulator.exploration.divergence_point import DivergencePoint, find_closest_pass
from ddpsim.simulator.exploration.strategy import Strategy, strategy_by_name
from ddpsim.simulator.policies.schedule_replay import ReplayPolicy
from ddpsim.simulator.transcript import TakenChoice
from ddpsim.simulator.wording import count_with_noun


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt at a test, and its reports."""

    attempt: Attempt
    reports: Sequence[pytest.TestReport]

    @property
    def outcome(self) -> str:
        """The outcome of the test: "passed", "skipped" or "failed"."""
        found = [each.outcome for each in self.reports]
        return next((each for each in ("failed", "skipped") if each in found), "passed")


AttemptUnder = Callable[[Policy], Attempted]
"""Attempts the test under a policy."""


@dataclass(slots=True)
class ScheduleSearch:
    """The schedules of one test that were run, and what came of them."""

    first: Attempted
    attempt_under: AttemptUnder
    outcomes: Counter[str] = field(default_factory=Counter)
    by_outcome: dict[str, Attempted] = field(default_factory=dict)
    """For each outcome, the first attempt that had it."""
    point: DivergencePoint | None = None
    """The choice by which a failing schedule differs from a passing one; None if that is not known."""

    def search(self, schedules: int, seconds: float, seed: int) -> None:
        """Run up to this number of schedules besides the first, and compare the failing with the passing ones."""
        end = time.monotonic() + seconds
        world_size = self.first.attempt.results[0].world_size
        self._count(self.first)
        half = schedules - schedules // 2
        for name, most in (("random", half), ("dpor", schedules - half)):
            self._run(strategy_by_name(name, world_size, seed=seed), most, end)
        if self.is_flaky:
            failed, passed = (self.by_outcome[name].attempt.results[0] for name in ("failed", "passed"))
            found = find_closest_pass(failed, passed, self._run_with_choices, is_over=lambda: time.monotonic() > end)
            self.point = None if found is None else found[1]

    @property
    def is_flaky(self) -> bool:
        """True if the test passes under one schedule, and fails under another one."""
        return {"failed", "passed"} <= self.outcomes.keys()

    def text(self) -> str:
        """Return how many schedules had which outcome, and the choice on which it depends."""
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        text = f"{count_with_noun(self.outcomes.total(), 'schedule')}: {outcomes}"
        if self.point is None:
            return text
        failing, passing = self.point.failing, self.point.passing
        where = f"{failing.choice_text} where it fails, {passing.choice_text} where it passes"
        return f"{text}; at step {failing.point.number} {where}"

    def _run(self, strategy: Strategy, most: int, end: float) -> None:
        while most > 0 and time.monotonic() < end and (policy := strategy.next_policy()) is not None:
            most -= 1
            attempted = self.attempt_under(policy)
            self._count(attempted)
            if not attempted.attempt.results:
                return
            strategy.take(attempted.attempt.results[0])

    def _count(self, attempted: Attempted) -> None:
        self.outcomes[attempted.outcome] += 1
        self.by_outcome.setdefault(attempted.outcome, attempted)

    def _run_with_choices(self, choices: tuple[int, ...]) -> tuple[Result, Sequence[TakenChoice]]:
        failed = self.by_outcome["failed"].attempt.results[0]
        policy = ReplayPolicy(Schedule(choices, failed.program, failed.schedule.start), keeps_choices=True)
        attempted = self.attempt_under(policy)
        result = attempted.attempt.results[0]
        has_passed = attempted.outcome == "passed"
        return (result if has_passed == (result.verdict is Verdict.PASS) else failed), policy.choices
