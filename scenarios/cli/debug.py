"""`ddpsim debug`: run a scenario or program in a debugger that shows all ranks."""

from __future__ import annotations

from bdb import BdbQuit
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, with_sets
from ddpsim.scenarios.cli.options import Name, OwnOrEngine, WorldSize
from ddpsim.scenarios.cli.program_words import note_trailing_options
from ddpsim.scenarios.cli.run import head_line
from ddpsim.scenarios.cli.status import Status
from ddpsim.simulator.imports import without_collections

if TYPE_CHECKING:
    from ddpsim.scenarios.model import Scenario


@with_sets
def debug(
    name: Name,
    token: Annotated[str | None, typer.Argument(metavar="TOKEN", help="The replay token of the run to debug.")] = None,
    *,
    at: Annotated[
        str | None, typer.Option(metavar="STEP", help="Stop first before this step, as `replay --step` numbers them.")
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(metavar="R", help="Stop first at the first line of the program on this rank.  [default: 0]"),
    ] = None,
    finding: Annotated[
        bool, typer.Option("--finding", help="Stop first at a finding, with every rank paused.")
    ] = False,
    commands: Annotated[Path | None, typer.Option(metavar="FILE", help="Take the commands from a file.")] = None,
    engine: OwnOrEngine = None,
    world_size: WorldSize = None,
    options: OptionsOfRun,
) -> int:
    """Run it in pdb, with commands that show all ranks and step backwards.

    Type `help` in the debugger for the list. It stops at every finding, with all ranks paused.
    """
    with without_collections():
        from ddpsim.scenarios.cli.judgement import judge
        from ddpsim.scenarios.files.loader import load
        from ddpsim.scenarios.running.debugging import debug_run, goal_of, reader_of_file
        from ddpsim.scenarios.running.run_as import with_options
        from ddpsim.simulator.runtime.prompt_server import read_line

    goal = goal_of(at, rank, finding=finding)
    read = read_line if commands is None else reader_of_file(commands)
    scenario = with_options(load(name), options)
    chosen = scenario.engine_named(engine)
    try:
        debugged = debug_run(
            scenario,
            token,
            goal,
            engine=chosen,
            world_size=world_size,
            save_as=partial(_save, scenario.name),
            read=read,
        )
    except BdbQuit:
        return Status.AS_EXPECTED
    status, line = judge(scenario.expected_by(chosen), debugged.result)
    output.show(f"{head_line(scenario, debugged.result, chosen, 'debugged')}\n\n{debugged.result}\n\n{line}")
    if debugged.missed:
        output.note(debugged.missed)
    note_trailing_options(scenario, debug, debugged.result)
    return status


def _save(name: str, scenario: Scenario, path: Path) -> None:
    from ddpsim.scenarios.fuzzing.shrinking.saved import check_free, save_shrunk

    check_free(path, "save")
    save_shrunk(scenario, name, path, how="a schedule made by hand of")
