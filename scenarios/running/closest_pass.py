"""Compare the failure that an exploration found with the closest schedule that passes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from functools import partial

from ddpsim import Budget, Exploration, Policy, Result, Schedule, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.runner import replay_command, run_scenario
from ddpsim.scenarios.running.silence import hide_program_output
from ddpsim.simulator.api import EXPLORATION_BUDGET
from ddpsim.simulator.choices import program_identity
from ddpsim.simulator.exploration.divergence_point import DivergencePoint, find_closest_pass
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.policies.named import DEFAULT_EXPLORING, RandomWalk, uses_seed
from ddpsim.simulator.policies.schedule_replay import ReplayPolicy
from ddpsim.simulator.transcript import TakenChoice
from ddpsim.simulator.verdict import Code

_RANDOM_SCHEDULES = 4
"""The number of random schedules to try if no run has passed. It is also the number of random continuations to try
after each beginning of the failing schedule that is kept, if runs need no processes."""
_LEAST_SECONDS = 1.0
"""The shortest time limit of a single run."""


def explore_with_closest_pass(
    exploration: Exploration,
    scenario: Scenario,
    engine: Engine,
    *,
    transport: str = "memory",
    policy: str = DEFAULT_EXPLORING,
    seconds: float = EXPLORATION_BUDGET.seconds,
) -> tuple[Exploration, DivergencePoint | None]:
    """Return the exploration with the passing run that follows the failing schedule longest, and the point where the
    two differ.

    Return the exploration unchanged, and None, if nothing failed, if no passing schedule is found within `seconds`, if
    runs do not repeat, or after Ctrl-C.
    """
    failing = exploration.first_failure
    if failing is None or (exploration.complete and exploration.first_pass is None):
        return exploration, None
    # These failures depend on more than the schedule, or each run needs long to show them.
    if any(finding.code in (Code.NONDETERMINISM, Code.STUCK) for finding in failing.findings):
        return exploration, None
    explored = dataclasses.replace(scenario, poison=scenario.poison is not False)
    program, start = program_identity(scenario.name, failing.world_size), failing.schedule.start
    end = time.monotonic() + seconds
    ways = 0 if scenario.isolation == "process" or isinstance(scenario.program, Script) else _RANDOM_SCHEDULES

    def run_under(policy: Policy) -> Result:
        budget = Budget(seconds=max(end - time.monotonic(), _LEAST_SECONDS))
        size = failing.world_size
        with hide_program_output(scenario):
            result = run_scenario(explored, engine, transport=transport, world_size=size, policy=policy, budget=budget)
        return result.with_replay(replay_command(result, scenario, engine, transport))

    def run(choices: tuple[int, ...]) -> tuple[Result, Sequence[TakenChoice]]:
        policy = ReplayPolicy(Schedule(choices, program, start), keeps_choices=True)
        return run_under(policy), policy.choices

    search = partial(find_closest_pass, failing, run=run, drawn=ways, is_over=lambda: time.monotonic() > end)
    try:
        found = search(exploration.first_pass)
        if found is None and exploration.first_pass is None and uses_seed(policy):
            drawn = (run_under(RandomWalk(seed)) for seed in range(_RANDOM_SCHEDULES))
            passing = next((result for result in drawn if result.verdict is Verdict.PASS), None)
            found = None if passing is None else search(passing)
    except KeyboardInterrupt:
        found = None
    if found is None:
        return exploration, None
    return dataclasses.replace(exploration, first_pass=found[0]), found[1]
