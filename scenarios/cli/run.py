"""`ddpsim run`: one scenario, with the whole text of what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.options import (
    Alike,
    Checks,
    Gpus,
    IsolationName,
    Name,
    OneAtATime,
    Opens,
    OwnOrEngines,
    OwnOrPolicy,
    Poison,
    Preload,
    ReportFolder,
    Seed,
    Timeout,
    TransportName,
    WorldSize,
    by_text,
    engines_named,
    how_text,
    prepared_for,
)
from ddpsim.scenarios.cli.program_options import own_arguments
from ddpsim.scenarios.cli.reporting import reporting
from ddpsim.scenarios.cli.status import worst

if TYPE_CHECKING:
    from ddpsim import Result
    from ddpsim.scenarios.cli.reporting import Report
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.model import Scenario


def run(
    name: Name,
    engine: OwnOrEngines = None,
    world_size: WorldSize = None,
    policy: OwnOrPolicy = None,
    seed: Seed = 0,
    transport: TransportName = "memory",
    isolation: IsolationName = None,
    gpus: Gpus = None,
    alike: Alike = False,
    preload: Preload = None,
    one_at_a_time: OneAtATime = False,
    check: Checks = None,
    poison: Poison = None,
    timeout: Timeout = None,
    report: ReportFolder = None,
    opens: Opens = False,
) -> int:
    """Run a scenario, or a function of yours, and say what came of it."""
    from ddpsim.scenarios.lookup.loader import load
    from ddpsim.scenarios.running.run_as import RunAs
    from ddpsim.scenarios.running.runner import run_scenario

    def run_once(scenario: Scenario, engine: Engine) -> Result:
        return run_scenario(
            scenario,
            engine,
            transport=transport,
            world_size=world_size,
            policy=policy,
            seed=seed,
            timeout_seconds=timeout,
        )

    scenario = RunAs(isolation, gpus, check, alike, preload or (), one_at_a_time, poison).applied_to(load(name))
    engines = (scenario.engine,) if engine is None else engines_named(engine)
    how = how_text(transport, policy, seed, scenario.choices)
    with reporting(report, opens=opens, title=name if len(engines) > 1 else "") as reported:
        return _run(scenario, engines, transport, how, run_once, reported)


def _run(
    scenario: Scenario,
    engines: tuple[Engine, ...],
    transport: str,
    how: str,
    run_once: Callable[[Scenario, Engine], Result],
    report: Report,
) -> int:
    from ddpsim.scenarios.cli.judgement import judge

    statuses = []
    with prepared_for(transport):
        for number, engine in enumerate(engines):
            start = time.perf_counter()
            with own_arguments(scenario, run) as own:
                result = run_once(own, engine)
            seconds = time.perf_counter() - start
            if len(engines) > 1:
                output.show(f"{'' if number == 0 else chr(10)}--- {engine.value}")
            judgement = judge(scenario.expected_by(engine), result, transport)
            output.show(f"{head(scenario, result, engine, how)}  {seconds * 1000:.0f} ms\n\n{result}\n")
            output.show(judgement.line)
            statuses.append(judgement.status)
            report.add_run(scenario, engine, result, *judgement, how=how, seconds=seconds, transport=transport)
    return worst(statuses)


def head(scenario: Scenario, result: Result, engine: Engine, how: str) -> str:
    """What was run; the engine stands there where it is not the one that people expect."""
    return f"{scenario.name}  world size {result.world_size}  {by_text(engine)}{how}"
