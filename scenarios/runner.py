"""Run a scenario under the simulator."""

from __future__ import annotations

import shlex

from scenarios.loader import load
from scenarios.model import Scenario
from simulator import Policy, Result, Schedule, UsageError, replay, simulate


def run_scenario(
    scenario: Scenario | str,
    engine: str = "torch",
    *,
    transport: str = "memory",
    world_size: int | None = None,
    policy: str | Policy = "round_robin",
    seed: int = 0,
) -> Result:
    """Simulate a scenario, or the one of that name; `scenario.expected.is_met_by(result)` says if it went as expected.

    `world_size` is the scenario's own unless given. Raises UsageError for what cannot be run.
    """
    scenario, size = _prepare(scenario, engine, world_size)
    result = simulate(
        scenario.program,
        size,
        args=scenario.args,
        policy=policy,
        seed=seed,
        transport=transport,
        faults=scenario.faults,
        check="replicas",
        name=scenario.name,
    )
    return _with_command(result, scenario)


def replay_scenario(
    scenario: Scenario | str,
    schedule: str | Schedule,
    engine: str = "torch",
    *,
    transport: str = "memory",
    world_size: int | None = None,
) -> Result:
    """Run a scenario again under a recorded schedule, or its token. Raises ReplayError if it belongs to another one."""
    scenario, size = _prepare(scenario, engine, world_size)
    result = replay(
        scenario.program,
        size,
        schedule,
        args=scenario.args,
        transport=transport,
        faults=scenario.faults,
        check="replicas",
        name=scenario.name,
    )
    return _with_command(result, scenario)


def _prepare(scenario: Scenario | str, engine: str, world_size: int | None) -> tuple[Scenario, int]:
    if isinstance(scenario, str):
        scenario = load(scenario)
    if engine != "torch":
        raise UsageError(f"engine is {engine!r}, expected 'torch', the only one there is yet: leave the argument out")
    if world_size is None:
        return scenario, scenario.world_size
    if isinstance(world_size, int) and world_size < scenario.min_world_size:
        least = scenario.min_world_size
        raise UsageError(f"world size is {world_size}, {scenario.name} expects {least} or more: give it more ranks")
    return scenario, world_size


def _with_command(result: Result, scenario: Scenario) -> Result:
    command = f"ddpsim replay {shlex.quote(scenario.name)} {result.schedule}"
    if result.world_size != scenario.world_size:
        command += f" --world-size {result.world_size}"
    return result.with_replay(command)
