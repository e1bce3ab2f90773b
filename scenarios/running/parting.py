"""What differs between what failed in an exploration of a scenario and a schedule close to it that passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ddpsim import Exploration, Result, Schedule
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.runner import replay_command, run_scenario
from ddpsim.scenarios.running.silence import silent
from ddpsim.simulator.choices import program_on
from ddpsim.simulator.exploration.parting import Parting, closest_pass
from ddpsim.simulator.policies.replay import Replay
from ddpsim.simulator.transcript import Choice
from ddpsim.simulator.verdict import Code


def with_closest_pass(
    exploration: Exploration, scenario: Scenario, engine: Engine, *, transport: str = "memory"
) -> tuple[Exploration, Parting | None]:
    """The exploration with an execution that passes and parts from the one that failed as late as it may, and where.

    As it was, and None, where nothing failed, every schedule fails, or runs do not repeat themselves. Ctrl-C ends the
    search, too.
    """
    failing = exploration.first_failure
    if failing is None or (exploration.complete and exploration.first_pass is None) or _does_not_repeat(failing):
        return exploration, None
    explored = dataclasses.replace(scenario, poison=scenario.poison is not False)
    program, start = program_on(scenario.name, failing.world_size), failing.schedule.start

    def run(choices: tuple[int, ...]) -> tuple[Result, Sequence[Choice]]:
        policy = Replay(Schedule(choices, program, start), keeps_choices=True)
        with silent(scenario):
            result = run_scenario(explored, engine, transport=transport, world_size=failing.world_size, policy=policy)
        again = replay_command(result, scenario, engine, transport)
        return result.with_replay(again), policy.choices

    try:
        found = closest_pass(failing, exploration.first_pass, run)
    except KeyboardInterrupt:
        found = None
    if found is None:
        return exploration, None
    return dataclasses.replace(exploration, first_pass=found[0]), found[1]


def _does_not_repeat(failing: Result) -> bool:
    return any(finding.code is Code.NONDETERMINISM for finding in failing.findings)
