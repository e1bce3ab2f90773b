"""`ddpsim replay`: a recorded run once more, step by step if asked, and whether it still is that run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, Records, with_sets
from ddpsim.scenarios.cli.options import Name, Opens, OwnOrEngine, ReportFolder, SimulatedTransport, WorldSize
from ddpsim.scenarios.cli.program_words import note_trailing_options
from ddpsim.scenarios.cli.recording import check_records, leave_records
from ddpsim.scenarios.cli.reporting import reporting
from ddpsim.scenarios.cli.run import head
from ddpsim.scenarios.cli.status import Status
from ddpsim.scenarios.cli.stepping import show_steps
from ddpsim.simulator.imports import without_collections

if TYPE_CHECKING:
    from ddpsim.scenarios.cli.reporting import Report
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.model import Expectation, Scenario
    from ddpsim.scenarios.running.replaying import Replayed
    from ddpsim.simulator.transcript import Line


@with_sets
def replay(
    name: Name,
    token: Annotated[
        str | None,
        typer.Argument(
            metavar="TOKEN",
            help="The replay token at the end of a report; not needed for a file that says its schedule.",
            show_default=False,
        ),
    ] = None,
    *,
    engine: OwnOrEngine = None,
    world_size: WorldSize = None,
    transport: SimulatedTransport = "memory",
    options: OptionsOfRun,
    step: Annotated[
        bool, typer.Option("--step", help="Show the run step by step: on a terminal, each after Enter.")
    ] = False,
    first: Annotated[
        int | None, typer.Option("--from", help="The first step to show; means --step, too.", show_default=False)
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", help="The last step to show; means --step, too.", show_default=False)
    ] = None,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Go on where the run does not offer what was recorded.")
    ] = False,
    report: ReportFolder = None,
    opens: Opens = False,
    records: Records,
) -> int:
    """Run it again exactly as a report recorded it.

    The report ends with the command to paste. Of a run that no longer offers what was recorded both sides are shown,
    and --report has how it went on.
    """
    with without_collections():
        from ddpsim.scenarios.files.loader import load
        from ddpsim.scenarios.running.replaying import replay_run
        from ddpsim.scenarios.running.run_as import with_options

    scenario = with_options(load(name), options)
    chosen = scenario.engine_named(engine)
    is_stepping = step or first is not None or last is not None
    check_records(records, transport=transport)
    with reporting(report, opens=opens) as reported:
        start = time.perf_counter()
        replayed = replay_run(
            scenario, token, chosen, transport=transport, world_size=world_size, keeps_choices=is_stepping
        )
        seconds = time.perf_counter() - start
        if is_stepping:
            show_steps(_between(replayed.steps(as_recorded=not lenient), first, last))
        above = "\n" * is_stepping
        status = _told(scenario, chosen, replayed, seconds, reported, is_strict=not lenient, above=above)
        leave_records(records, replayed.result)
        note_trailing_options(scenario, replay, replayed.result)
    return status


def _told(
    scenario: Scenario,
    engine: Engine,
    replayed: Replayed,
    seconds: float,
    report: Report,
    *,
    is_strict: bool,
    above: str,
) -> Status:
    """Say what came of it, on the terminal and in the report."""
    status, text = _judgement(scenario.expected_by(engine), replayed, is_strict=is_strict)
    if status is Status.USAGE_ERROR:
        output.note(str(replayed.error))
    else:
        start_line = f"{head(scenario, replayed.result, engine, 'replayed')}  {seconds * 1000:.0f} ms"
        output.show(f"{above}{start_line}\n\n{replayed.result}\n\n{text}")
    report.add_run(scenario, engine, replayed.result, status, text, how="replayed", seconds=seconds)
    return status


def _between(steps: list[Line], first: int | None, last: int | None) -> list[Line]:
    """The steps from one number to another. Raises UsageError if there are none."""
    from ddpsim import UsageError

    chosen = [step for step in steps if (first or 0) <= step.number and (last is None or step.number <= last)]
    if steps and not chosen:
        asked = " ".join([f"--from {first}"] * (first is not None) + [f"--to {last}"] * (last is not None))
        raise UsageError(
            f"{asked} leaves no step, expected some of {steps[0].number} to {steps[-1].number}: correct it"
        )
    return chosen


def _judgement(expected: Expectation, replayed: Replayed, *, is_strict: bool) -> tuple[Status, str]:
    """The exit status, and the lines that say so. A strict replay that diverges is judged by nothing else."""
    from ddpsim.scenarios.cli.judgement import divergence_line, judge

    if replayed.divergence is not None and is_strict:
        return Status.USAGE_ERROR, divergence_line(replayed.divergence)
    status, line = judge(expected, replayed.result)
    lines = [line]
    if replayed.divergence is not None:
        lines.insert(0, divergence_line(replayed.divergence))
    elif replayed.difference:
        status = Status.OTHERWISE if is_strict else status
        lines.insert(0, f"not as recorded, though every recorded answer fits: {replayed.difference}")
    return status, "\n".join(lines)
