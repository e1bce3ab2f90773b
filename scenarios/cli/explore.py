"""`ddpsim explore`: one scenario under many schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.options import (
    Alike,
    Checks,
    Gpus,
    IsolationName,
    Name,
    OneAtATime,
    Opens,
    OwnOrEngine,
    Preload,
    ReportFolder,
    Seed,
    SimulatedTransport,
    WorldSize,
    by_text,
    how_text,
)
from ddpsim.scenarios.cli.program_options import own_arguments
from ddpsim.scenarios.cli.reporting import reporting
from ddpsim.scenarios.cli.status import Status
from ddpsim.simulator.policies.named import DEFAULT_EXPLORING, exploring_text, option_text

if TYPE_CHECKING:
    from ddpsim import Exploration, Progress
    from ddpsim.reports.document import Document
    from ddpsim.scenarios.model import Expectation, Scenario


def explore(
    name: Name,
    engine: OwnOrEngine = None,
    world_size: WorldSize = None,
    transport: SimulatedTransport = "memory",
    isolation: IsolationName = None,
    gpus: Gpus = None,
    alike: Alike = False,
    preload: Preload = None,
    one_at_a_time: OneAtATime = False,
    check: Checks = None,
    policy: Annotated[str, typer.Option(help=f"{exploring_text()}.")] = DEFAULT_EXPLORING,
    seed: Seed = 0,
    depth: Annotated[int | None, typer.Option(help=option_text("pct"), show_default=False)] = None,
    preemptions: Annotated[int | None, typer.Option(help=option_text("dfs"), show_default=False)] = None,
    executions: Annotated[int, typer.Option(help="Stop after so many.")] = 1000,
    seconds: Annotated[float, typer.Option(help="Stop after so long.")] = 60.0,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on after a failure, and count outcomes.")
    ] = False,
    check_determinism: Annotated[
        bool, typer.Option("--check-determinism", help="Run each schedule twice, and compare; ranks start unlike.")
    ] = False,
    report: ReportFolder = None,
    opens: Opens = False,
) -> int:
    """Run a scenario, or a function of yours, under many schedules, until one fails or all are covered.

    Exit status: 0 as expected, 1 otherwise, 2 usage error, 3 if the budget ran out first.
    """
    from ddpsim import Budget
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.lookup.loader import load
    from ddpsim.scenarios.running.exploring import explore_scenario
    from ddpsim.scenarios.running.run_as import RunAs

    scenario = RunAs(isolation, gpus, check, alike, preload or (), one_at_a_time).applied_to(load(name))
    chosen = scenario.engine if engine is None else Engine.named(engine)
    with reporting(report, opens=opens) as reported:
        with own_arguments(scenario, explore) as own, output.bar("exploring", executions, _where) as on_progress:
            exploration = explore_scenario(
                own,
                chosen,
                policy=policy,
                seed=seed,
                depth=depth,
                preemptions=preemptions,
                transport=transport,
                world_size=world_size,
                budget=Budget(executions=executions, seconds=seconds),
                keep_going=keep_going,
                check_determinism=check_determinism,
                on_progress=on_progress,
            )
        output.show(f"{exploration}\n")
        status, text = _judgement(scenario.expected_by(chosen), exploration)
        output.show(text)
        how = by_text(chosen) + how_text(transport, policy, seed)
        reported.add_exploration(lambda: _document(scenario, exploration, how, status, text))
    return status


def _document(scenario: Scenario, exploration: Exploration, how: str, status: Status, conclusion: str) -> Document:
    from ddpsim.reports.making.exploration import document_of_exploration

    is_expected = status is Status.AS_EXPECTED
    return document_of_exploration(
        exploration, name=scenario.name, how=how, is_expected=is_expected, conclusion=conclusion
    )


_WHY_UNSEEN = "which may depend on files or objects that ranks share: try --policy random"


def _judgement(expected: Expectation, exploration: Exploration) -> tuple[Status, str]:
    """The exit status, and a line that says so; what was expected may show in one schedule of many."""
    from ddpsim import Verdict
    from ddpsim.scenarios.cli.judgement import judge

    failure = exploration.first_failure
    if failure is not None:
        return judge(expected, failure)
    wanted = expected.verdict
    if exploration.verdict is Verdict.UNKNOWN:
        return Status.UNKNOWN, f"unknown: nothing failed so far; expected {wanted.value}"
    if wanted is Verdict.PASS:
        return Status.AS_EXPECTED, "as expected: pass under every schedule"
    return Status.OTHERWISE, f"not as expected: found pass; expected {wanted.value}, {_WHY_UNSEEN}"


def _where(progress: Progress) -> tuple[float, str]:
    """How far it is: rate, coverage and failures."""
    covered = "" if progress.coverage is None else f", {progress.coverage:.0%} covered"
    return progress.executions, f"exploring, {progress.rate:.0f}/s{covered}, {progress.failures} failed"
