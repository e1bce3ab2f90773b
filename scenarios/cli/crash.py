"""`ddpsim crash`: end a training at each of its operations, let it resume, and judge what comes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, expand_option_sets
from ddpsim.scenarios.cli.options import Name, Opens, ReportFolder, WorldSize
from ddpsim.scenarios.cli.program_words import importing_simulator
from ddpsim.scenarios.cli.reporting import report_writer
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.faults import Strike
from ddpsim.simulator.wording import count_with_noun

if TYPE_CHECKING:
    from ddpsim.scenarios.model import Scenario
    from ddpsim.simulator.crashing.values import BadPoint, CrashSweep


@expand_option_sets
def crash(
    name: Name,
    *,
    world_size: WorldSize = None,
    options: OptionsOfRun,
    seconds: Annotated[float, typer.Option(help="Try no further point after so many real seconds.")] = 60.0,
    points: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Try only the points of this file: the --fault texts of one in each line."),
    ] = None,
    report: ReportFolder = None,
    opens: Opens = False,
) -> int:
    """Kill ranks, tear files and interrupt a program at each of its operations, resume it, and judge the end."""
    with importing_simulator():
        from ddpsim.scenarios.engines import Engine
        from ddpsim.scenarios.files.loader import load
        from ddpsim.scenarios.running.run_as import run_keywords, with_run_options
        from ddpsim.simulator.crashing.sweep import crash as sweep_points
        from ddpsim.simulator.launching.script import Script

    own = with_run_options(load(name), options)
    scenario = own.with_world_size(world_size)
    if not isinstance(scenario.program, Script):
        raise UsageError(f"{name} is no program, expected FILE.py or -m MODULE: only those resume from files")
    with output.progress_bar("points", 1.0, _progress) as show, report_writer(report, opens=opens) as reported:
        sweep = sweep_points(
            scenario.program,
            scenario.world_size,
            seconds=seconds,
            points=[] if points is None else _points_of_file(points),
            on_progress=show,
            **{**run_keywords(scenario, "memory"), "alike": scenario.alike},
        )
        for bad in sweep.bad[:1]:
            reported.add_run(
                scenario, Engine.TORCH, bad.result, ExitStatus.OTHERWISE, bad.text, how="crash", seconds=0.0
            )
    output.print_text(sweep_text(own, scenario.world_size, sweep))
    if sweep.bad:
        return ExitStatus.OTHERWISE
    return ExitStatus.UNKNOWN if sweep.unstable or sweep.tried < sweep.differing else ExitStatus.AS_EXPECTED


def _points_of_file(file: Path) -> list[list[Strike]]:
    from ddpsim.scenarios.running.run_as import parse_fault

    try:
        lines = [line.partition("#")[0].replace("--fault", "").split() for line in file.read_text().splitlines()]
    except OSError as error:
        raise UsageError(f"the points of {file} cannot be read ({error.strerror}), expected a file: name one") from None
    found = [[parse_fault(word) for word in line] for line in lines if line]
    wrong = [fault for line in found for fault in line if not isinstance(fault, Strike)]
    if wrong or not found:
        what = f"has {wrong[0]}" if wrong else "has no point"
        raise UsageError(f"{file} {what}, expected lines of strikes, as in the replay lines of a sweep: correct it")
    return cast("list[list[Strike]]", found)


def _progress(tried_of: tuple[int, int]) -> tuple[float, str]:
    tried, of = tried_of
    return tried / of, f"{tried} of {of} points"


def sweep_text(scenario: Scenario, world_size: int, sweep: CrashSweep) -> str:
    """Return the report of a sweep: how many points there are, and for each code its first bad point."""
    if sweep.unstable:
        return f"{scenario.name}  not tried: {sweep.unstable}, so that nothing could be compared; seed it, for instance"
    head = f"{scenario.name}  world size {world_size}  {sweep.possible} points, {sweep.differing} that differ"
    untried = ", ".join(f"{count} of {how.value}" for how, count in sweep.untried.items())
    left = f" (the time ran out before {untried})" if untried else ""
    lines = [f"{head}, {sweep.tried} tried{left}  {sweep.seconds * 1000:.0f} ms", ""]
    for code in dict.fromkeys(bad.code for bad in sweep.bad):
        those = [bad for bad in sweep.bad if bad.code is code]
        more = f"\n  also    after {count_with_noun(len(those) - 1, 'later point')}" if len(those) > 1 else ""
        lines += [f"BAD  {code.value}\n  point   {those[0].point.text}\n  what    {those[0].text}{more}"]
        lines += [f"  replay  {_replay_line(scenario, those[0])}", ""]
    if not sweep.bad:
        is_whole = sweep.tried == sweep.differing
        lines += ["GOOD  after each of them" if is_whole else "UNKNOWN  nothing wrong after those that were tried", ""]
    return "\n".join([*lines, *(f"note  {note}" for note in sweep.notes)]).rstrip()


def _replay_line(scenario: Scenario, bad: BadPoint) -> str:
    """Return the command that repeats a run; it leaves its files in the working folder."""
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.running.runner import replay_command
    from ddpsim.simulator.hosts import FRESH_STORE

    struck = replace(scenario, max_restarts=1, faults=bad.point.strikes, added_faults=bad.point.strikes)
    return f"{FRESH_STORE}=1 {replay_command(bad.result, struck, Engine.TORCH, 'memory')}"
