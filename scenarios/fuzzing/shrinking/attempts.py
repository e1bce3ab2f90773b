"""Check whether a simpler scenario still fails in the same way, and under which schedule.

A schedule rarely fits another program than its own. So a simpler program gets a small search: its predecessor's
choices, round robin, a few more DPOR executions, and a few random walks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from ddpsim import Result, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.fuzzing.shrinking.candidate import Candidate
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.simulator.choices import RedundantRun
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.policies.named import RandomWalk
from ddpsim.simulator.policies.schedule_replay import Guided
from ddpsim.simulator.shrinking.greedy import Attempt, Failure
from ddpsim.simulator.shrinking.shrunk_schedule import stripped

_EXPLORED = 20
_WALKS = 4
"""The numbers of executions of a search, by DPOR and by random walks."""


@dataclass(frozen=True, slots=True)
class SameWay:
    """The condition for a result to count as the same failure."""

    failure: Failure
    engine: Engine
    is_surprise: bool
    """True if the scenario did not expect the failure. Then a simpler scenario must not expect it either."""

    def holds_for(self, scenario: Scenario, result: Result) -> bool:
        """Return True if the result of a scenario shows the same failure."""
        return self.failure.is_that_of(result) and not (
            self.is_surprise and scenario.expected_by(self.engine).is_met_by(result)
        )


def attempt(candidate: Candidate, same: SameWay) -> Attempt[Candidate]:
    """Run a candidate under its own schedule, or under several."""
    scenario, executions = candidate.scenario, 0
    try:
        for result in _runs(candidate, same.engine):
            executions += 1
            if same.holds_for(scenario, result):
                choices = stripped(result.schedule.choices)
                return Attempt(Candidate(replace(scenario, choices=choices)), executions)
    except UsageError:  # a scenario that is refused does not fail
        return Attempt(None, executions + 1)
    return Attempt(None, executions)


def _runs(candidate: Candidate, engine: Engine) -> Iterator[Result]:
    scenario = candidate.scenario
    yield run_scenario(scenario, engine, policy=Guided(scenario.choices))
    if candidate.has_own_schedule or not scenario.choices:
        return
    yield from _searched(scenario, engine)


def _searched(scenario: Scenario, engine: Engine) -> Iterator[Result]:
    """Yield DPOR's executions, the first of which is round robin; then random walks, unless DPOR has covered all."""
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
