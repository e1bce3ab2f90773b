"""Attempts one test under many schedules, and finds out whether its outcome depends on them.

Half of the schedules are random, because they differ most; the others are those that dpor chooses, because it soon runs
what may matter. A failing and a passing schedule are brought as close together as the budget allows, so that what
differs is one choice.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from ddpsim import Policy, Result, Schedule, Verdict
from ddpsim.scenarios.test_suites.ranks_of_test import Attempt
from ddpsim.simulator.choices import RedundantRun
from ddpsim.simulator.exploration.divergence_point import DivergencePoint, find_closest_pass
from ddpsim.simulator.exploration.strategy import Strategy, strategy_by_name
from ddpsim.simulator.policies.schedule_replay import ReplayPolicy
from ddpsim.simulator.transcript import TakenChoice
from ddpsim.simulator.wording import count_with_noun

_REPETITIONS = 3


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
    is_repeatable: bool = False
    """True if a failing and a passing schedule had the same outcomes whenever they were run again."""

    def search(self, schedules: int, seconds: float, seed: int) -> None:
        """Run up to this number of schedules besides the first, and compare the failing with the passing ones."""
        end = time.monotonic() + seconds
        world_size = self.first.attempt.results[0].world_size
        self._count(self.first)
        half = schedules - schedules // 2
        for name, most in (("random", half), ("dpor", schedules - half)):
            self._run(strategy_by_name(name, world_size, seed=seed), most, end)
        if self.has_both:
            failed, passed = (self.by_outcome[name].attempt.results[0] for name in ("failed", "passed"))
            self.is_repeatable = failed.schedule.choices != passed.schedule.choices and all(
                self._outcome_under(each.schedule.choices) == name
                for name, each in (("failed", failed), ("passed", passed)) * _REPETITIONS
            )
            found = (
                None
                if not self.is_repeatable
                else find_closest_pass(failed, passed, self._run_with_choices, is_over=lambda: time.monotonic() > end)
            )
            self.point = None if found is None else found[1]

    @property
    def has_both(self) -> bool:
        """True if the test passed once, and failed once."""
        return {"failed", "passed"} <= self.outcomes.keys()

    def text(self) -> str:
        """Return how many schedules had which outcome, and the choice on which it depends."""
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        text = f"{count_with_noun(self.outcomes.total(), 'schedule')}: {outcomes}"
        if self.has_both and not self.is_repeatable:
            return f"{text}; a schedule that is run again has another outcome, so that something else decides"
        if self.point is None:
            return text
        failing, passing = self.point.failing, self.point.passing
        where = f"{failing.choice_text} where it fails, {passing.choice_text} where it passes"
        return f"{text}; at step {failing.point.number} {where}"

    def _run(self, strategy: Strategy, most: int, end: float) -> None:
        while most > 0 and time.monotonic() < end and (policy := strategy.next_policy()) is not None:
            most -= 1
            attempted = self.attempt_under(policy)
            if attempted.attempt.is_redundant:
                continue
            if not attempted.attempt.results:
                return
            self._count(attempted)
            with suppress(RedundantRun):
                strategy.take(attempted.attempt.results[0])

    def _count(self, attempted: Attempted) -> None:
        self.outcomes[attempted.outcome] += 1
        self.by_outcome.setdefault(attempted.outcome, attempted)

    def _attempt_with_choices(self, choices: tuple[int, ...]) -> tuple[Attempted, Sequence[TakenChoice]]:
        failed = self.by_outcome["failed"].attempt.results[0]
        policy = ReplayPolicy(Schedule(choices, failed.program, failed.schedule.start), keeps_choices=True)
        return self.attempt_under(policy), policy.choices

    def _outcome_under(self, choices: tuple[int, ...]) -> str:
        return self._attempt_with_choices(choices)[0].outcome

    def _run_with_choices(self, choices: tuple[int, ...]) -> tuple[Result, Sequence[TakenChoice]]:
        attempted, taken = self._attempt_with_choices(choices)
        for result in attempted.attempt.results[:1]:
            if (attempted.outcome == "passed") == (result.verdict is Verdict.PASS):
                return result, taken
        return self.by_outcome["failed"].attempt.results[0], taken
