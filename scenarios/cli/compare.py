"""`ddpsim compare`: hold a training on several ranks against the same training on one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpsim.scenarios.cli import options as cli_options
from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, expand_option_sets
from ddpsim.scenarios.cli.program_words import importing_simulator
from ddpsim.scenarios.cli.status import ExitStatus

if TYPE_CHECKING:
    from ddpsim.simulator.comparing.judgement import Comparison


@expand_option_sets
def compare(
    name: cli_options.Name,
    *,
    world_size: cli_options.WorldSize = None,
    against: Annotated[
        str,
        typer.Option(
            metavar="M|ARGUMENTS",
            help="The reference: its number of ranks, arguments that it gets after the program's own, or both.",
        ),
    ] = "1",
    optimizer_steps: Annotated[int, typer.Option(help="Compare so many optimizer steps, the first ones.")] = 20,
    exact: Annotated[
        bool, typer.Option("--exact", help="Do not allow for rounding: tensors are the same only if their bits are.")
    ] = False,
    options: OptionsOfRun,
    seconds: Annotated[
        float | None, typer.Option(help="Stop each run after so many real seconds.  [default: 600]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[
        Path | None,
        cli_options.folder_option("--report", "Write the answer into this folder: HTML, text and JSON."),
    ] = None,
) -> int:
    """Say whether a training on several ranks is that on one rank, and which tensor differs first.

    Exit status: 0 the same, 1 not the same, 2 usage error, 3 not known.
    """
    with importing_simulator():
        from ddpsim import Budget, compare
        from ddpsim.scenarios.files.loader import load
        from ddpsim.scenarios.running.run_as import run_keywords, with_run_options

    scenario = with_run_options(load(name), options).with_world_size(world_size)
    keywords: dict[str, Any] = {**run_keywords(scenario, "memory"), "alike": scenario.alike}
    found = compare(
        scenario.program,
        scenario.world_size,
        against=int(against) if against.isdecimal() else against,
        steps=optimizer_steps,
        exact=exact,
        budget=None if seconds is None else Budget(seconds=seconds),
        **keywords,
    )
    if report is not None:
        _write_report(found, report)
    output.print_text(json.dumps(found.as_json(), indent=2) if as_json else str(found))
    return _status_of(found)


def _write_report(found: Comparison, folder: Path) -> None:
    from ddpsim.reports.forms.comparison import comparison_to_html
    from ddpsim.reports.report_folder import make_folder, write_file

    make_folder(folder)
    values = found.as_json()
    write_file(folder / "report.html", comparison_to_html(values))
    write_file(folder / "report.txt", f"{found}\n".encode())
    write_file(folder / "result.json", json.dumps(values, indent=2).encode())


def _status_of(found: Comparison) -> ExitStatus:
    from ddpsim.simulator.comparing.comparison import Answer

    statuses = {Answer.SAME: ExitStatus.AS_EXPECTED, Answer.DIFFERENT: ExitStatus.OTHERWISE}
    return statuses.get(found.answer, ExitStatus.UNKNOWN)
