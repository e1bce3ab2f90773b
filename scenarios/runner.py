"""Run a scenario under the simulator, on either engine, and compare it with the oracle where it has one."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from inspect import signature

from ddp import DistributedDataParallel
from scenarios import engines
from scenarios.engines import Engine
from scenarios.loader import load
from scenarios.model import Scenario
from scenarios.reference import divergence_from
from scenarios.training import Training
from simulator import Policy, Result, Schedule, UsageError, Verdict, replay, simulate


def run_scenario(
    scenario: Scenario | str,
    engine: str | Engine = "torch",
    *,
    transport: str = "memory",
    world_size: int | None = None,
    policy: str | Policy = "round_robin",
    seed: int = 0,
) -> Result:
    """Simulate a scenario, or the one of that name; `scenario.expected_by(engine).is_met_by(result)` judges the result.

    Replicas are compared as by `check="replicas"`, and what the ranks return with the scenario's reference, if it has
    one. `world_size` is the scenario's own unless given. Raises UsageError for what cannot be run.
    """

    def run(chosen: Scenario) -> Result:
        return simulate(
            chosen.program,
            chosen.world_size,
            args=chosen.args,
            policy=policy,
            seed=seed,
            transport=transport,
            faults=chosen.faults,
            check="replicas",
            name=chosen.name,
        )

    return _run(scenario, engine, world_size, run)


def replay_scenario(
    scenario: Scenario | str,
    schedule: str | Schedule,
    engine: str | Engine = "torch",
    *,
    transport: str = "memory",
    world_size: int | None = None,
) -> Result:
    """Run a scenario again under a recorded schedule, or its token. Raises ReplayError if it belongs to another one."""

    def run(chosen: Scenario) -> Result:
        return replay(
            chosen.program,
            chosen.world_size,
            schedule,
            args=chosen.args,
            transport=transport,
            faults=chosen.faults,
            check="replicas",
            name=chosen.name,
        )

    return _run(scenario, engine, world_size, run)


def _run(
    scenario: Scenario | str, engine: str | Engine, world_size: int | None, run: Callable[[Scenario], Result]
) -> Result:
    own = load(scenario) if isinstance(scenario, str) else scenario
    engine = Engine.named(engine)
    chosen = own.with_world_size(world_size)
    if engine is Engine.DDP:
        _check_engine_options(chosen)
    with engines.installed(engine):
        result = run(chosen)
    return _against_reference(result, chosen).with_replay(_command(result, own, engine))


def _check_engine_options(scenario: Scenario) -> None:
    """Raise UsageError if a declared training gives our engine an argument that only torch's has."""
    known = signature(DistributedDataParallel).parameters
    declared = [each for each in scenario.args if isinstance(each, Training)]
    for name in [name for training in declared for name in training.engine_options if name not in known]:
        raise UsageError(
            f"{scenario.name} has [engine] {name}, which engine 'ddp' does not have: leave it out, or take 'torch'"
        )


def _against_reference(result: Result, scenario: Scenario) -> Result:
    """The result, with a finding where what the ranks returned is not what plain training gives."""
    if scenario.reference is None or result.verdict is not Verdict.PASS:
        return result
    finding = divergence_from(scenario.reference(result.world_size), result)
    return result if finding is None else dataclasses.replace(result, findings=(finding, *result.findings))


def _command(result: Result, scenario: Scenario, engine: Engine) -> str:
    command = f"ddpsim replay {shlex.quote(scenario.name)} {result.schedule}"
    if result.world_size != scenario.world_size:
        command += f" --world-size {result.world_size}"
    return command if engine is Engine.TORCH else f"{command} --engine {engine.value}"
