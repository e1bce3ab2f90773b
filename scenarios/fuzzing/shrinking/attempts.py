"""Check whether a simpler scenario still fails in the same way, and under which schedule.

A schedule of one program rarely fits a simpler program. So for each simpler program a small search is made: the choices
of the program before it, round robin, a few executions of DPOR (dynamic partial-order reduction), and a few random
walks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from ddpsim import Result, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.fuzzing.shrinking.candidate import ScenarioCandidate
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.simulator.choices import RedundantRun, without_trailing_defaults
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.policies.named import RandomWalk
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.shrinking.greedy import FailureKind, ShrinkAttempt

_EXPLORED = 20
_WALKS = 4
"""The numbers of executions in such a search: by DPOR, and by random walks."""


@dataclass(frozen=True, slots=True)
class SameFailure:
    """The condition for a run's result to count as the same failure."""

    failure: FailureKind
    engine: Engine
    is_surprise: bool
    """True if the scenario did not expect the failure. Then a simpler scenario must not expect the failure either."""

    def is_shown_by(self, scenario: Scenario, result: Result) -> bool:
        """Return True if the result of a scenario shows the same failure."""
        return self.failure.matches_result(result) and not (
            self.is_surprise and scenario.expected_by(self.engine).is_met_by(result)
        )


def try_candidate(candidate: ScenarioCandidate, same: SameFailure) -> ShrinkAttempt[ScenarioCandidate]:
    """Run a candidate for a simpler scenario under its own schedule, or under several schedules."""
    scenario, executions = candidate.scenario, 0
    try:
        for result in _run_candidate(candidate, same.engine):
            executions += 1
            if same.is_shown_by(scenario, result):
                choices = without_trailing_defaults(result.schedule.choices)
                return ShrinkAttempt(ScenarioCandidate(replace(scenario, choices=choices)), executions)
    except UsageError:  # a scenario that is refused does not fail
        return ShrinkAttempt(None, executions + 1)
    return ShrinkAttempt(None, executions)


def _run_candidate(candidate: ScenarioCandidate, engine: Engine) -> Iterator[Result]:
    scenario = candidate.scenario
    yield run_scenario(scenario, engine, policy=GuidedPolicy(scenario.choices))
    if candidate.has_own_schedule or not scenario.choices:
        return
    yield from _search_schedules(scenario, engine)


def _search_schedules(scenario: Scenario, engine: Engine) -> Iterator[Result]:
    """Yield the executions of DPOR, starting with round robin.

    Then yield random walks, unless DPOR has covered all schedules.
    """
    strategy = Dpor(scenario.world_size)
    for _ in range(_EXPLORED):
        policy = strategy.next_policy()
        if policy is None:
            return
        try:
            result = run_scenario(scenario, engine, policy=policy)
        except RedundantRun:
            continue
        with suppress(RedundantRun):
            strategy.take(result)
        yield result
    for seed in range(_WALKS):
        yield run_scenario(scenario, engine, policy=RandomWalk(seed))
