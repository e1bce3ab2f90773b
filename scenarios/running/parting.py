"""What differs between what failed in an exploration of a scenario and a schedule close to it that passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ddpsim import Exploration, Policy, Result, Schedule, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.runner import replay_command, run_scenario
from ddpsim.scenarios.running.silence import silent
from ddpsim.simulator.choices import program_on
from ddpsim.simulator.exploration.parting import Parting, closest_pass
from ddpsim.simulator.policies.named import DEFAULT_EXPLORING, draws
from ddpsim.simulator.policies.random_walk import RandomWalk
from ddpsim.simulator.policies.replay import Replay
from ddpsim.simulator.rank_processes.program import Program
from ddpsim.simulator.transcript import Choice
from ddpsim.simulator.verdict import Code

_DRAWN = 4
"""So many schedules are drawn where the first execution failed, and so does the default; and as many ways on from what
is kept of the one that failed, where an execution takes no processes."""


def with_closest_pass(
    exploration: Exploration,
    scenario: Scenario,
    engine: Engine,
    *,
    transport: str = "memory",
    policy: str = DEFAULT_EXPLORING,
) -> tuple[Exploration, Parting | None]:
    """The exploration with an execution that passes and parts from the one that failed as late as it may, and where.

    As it was, and None, where nothing failed, no schedule is found that passes, or runs do not repeat themselves.
    Ctrl-C ends the search, too.
    """
    failing = exploration.first_failure
    if failing is None or (exploration.complete and exploration.first_pass is None) or _does_not_repeat(failing):
        return exploration, None
    explored = dataclasses.replace(scenario, poison=scenario.poison is not False)
    program, start = program_on(scenario.name, failing.world_size), failing.schedule.start

    is_slow = scenario.isolation == "process" or isinstance(scenario.program, Program)
    ways = 0 if is_slow else _DRAWN

    def run_under(policy: Policy) -> Result:
        with silent(scenario):
            result = run_scenario(explored, engine, transport=transport, world_size=failing.world_size, policy=policy)
        return result.with_replay(replay_command(result, scenario, engine, transport))

    def run(choices: tuple[int, ...]) -> tuple[Result, Sequence[Choice]]:
        policy = Replay(Schedule(choices, program, start), keeps_choices=True)
        return run_under(policy), policy.choices

    try:
        found = closest_pass(failing, exploration.first_pass, run, drawn=ways)
        if found is None and exploration.first_pass is None and draws(policy):
            drawn = (run_under(RandomWalk(seed)) for seed in range(_DRAWN))
            passing = next((result for result in drawn if result.verdict is Verdict.PASS), None)
            found = None if passing is None else closest_pass(failing, passing, run, drawn=ways)
    except KeyboardInterrupt:
        found = None
    if found is None:
        return exploration, None
    return dataclasses.replace(exploration, first_pass=found[0]), found[1]


def _does_not_repeat(failing: Result) -> bool:
    return any(finding.code is Code.NONDETERMINISM for finding in failing.findings)
