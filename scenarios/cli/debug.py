"""`ddpsim debug`: run a scenario or program in a debugger that shows all ranks."""

from __future__ import annotations

from bdb import BdbQuit
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, expand_option_sets
from ddpsim.scenarios.cli.options import Name, OwnOrEngine, WorldSize
from ddpsim.scenarios.cli.program_words import importing_simulator, note_trailing_options
from ddpsim.scenarios.cli.run import head_line
from ddpsim.scenarios.cli.status import ExitStatus

if TYPE_CHECKING:
    from ddpsim.scenarios.model import Scenario


@expand_option_sets
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
    """Run a scenario or program in pdb, with commands that show all ranks and step backwards.

    Type `help` in the debugger for the list. The debugger stops at every finding, with all ranks paused.
    """
    with importing_simulator():
        from ddpsim.scenarios.cli.judgement import judge_result
        from ddpsim.scenarios.files.loader import load
        from ddpsim.scenarios.running.debugging import debug_run, goal_of_options, read_commands_from_file
        from ddpsim.scenarios.running.run_as import with_run_options
        from ddpsim.simulator.runtime.prompt_server import read_edited_line

    goal = goal_of_options(at, rank, finding=finding)
    read = read_edited_line if commands is None else read_commands_from_file(commands)
    scenario = with_run_options(load(name), options)
    chosen = scenario.engine_named(engine)
    try:
        debugged = debug_run(
            scenario,
            token,
            goal,
            engine=chosen,
            world_size=world_size,
            save_as=partial(_save_scenario, scenario.name),
            read=read,
        )
    except BdbQuit:
        return ExitStatus.AS_EXPECTED
    status, line = judge_result(scenario.expected_by(chosen), debugged.result)
    output.print_text(f"{head_line(scenario, debugged.result, chosen, 'debugged')}\n\n{debugged.result}\n\n{line}")
    if debugged.missed:
        output.print_note(debugged.missed)
    note_trailing_options(scenario, debug, debugged.result)
    return status


def _save_scenario(name: str, scenario: Scenario, path: Path) -> None:
    from ddpsim.scenarios.files.saving import write_text
    from ddpsim.scenarios.fuzzing.shrinking.saved import check_output_file, shrunk_scenario_text

    check_output_file(path, "save")
    write_text(path, shrunk_scenario_text(scenario, name, path, how="a schedule made by hand of"))
