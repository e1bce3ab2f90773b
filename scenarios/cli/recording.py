"""`--flight-recorder DIR`, `--clog DIR`, `--chakra DIR`: write the records of a simulated run as a real job would."""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionSet
from ddpsim.scenarios.cli.options import folder_option
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.imports import pause_garbage_collection

if TYPE_CHECKING:
    from ddpsim import Result
    from ddpsim.scenarios.records.writing import RecordFolders

_FOLDERS = {
    "flight_recorder": "Write the dumps that torch's flight recorder would leave into this folder, one per rank.",
    "clog": "Write the logs that torchcomms' clog would leave into this folder, one per rank.",
    "chakra": "Write Chakra execution traces into this folder, one per rank, for performance simulators.",
}
"""The fields of `RecordFolders`, each with the help text of its option."""


def _make_record_folders(**folders: Path | None) -> RecordFolders:
    with pause_garbage_collection():
        from ddpsim.scenarios.records.writing import RecordFolders

    return RecordFolders(**folders)


def _parameters_of_record_options(command: str) -> list[Parameter]:
    options = {name: folder_option(f"--{name.replace('_', '-')}", text) for name, text in _FOLDERS.items()}
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, option])
        for name, option in options.items()
    ]


Records = Annotated["RecordFolders", OptionSet(_make_record_folders, _parameters_of_record_options)]


def check_record_folders(folders: RecordFolders, *, runs: int = 1, transport: str = "memory") -> None:
    """Make the folders for records before the run. Raises UsageError if records cannot be written there."""
    if not folders.folders_by_option:
        return
    from ddpsim.scenarios.records.writing import create_record_folders

    option = next(iter(folders.folders_by_option))
    if runs > 1:
        raise UsageError(f"{option} with {runs} runs, expected one: name one engine, one backend and one seed")
    if transport == "processes":
        raise UsageError(f"{option} with --transport processes, expected a simulated run: leave one of them out")
    create_record_folders(folders)


def write_and_show_records(folders: RecordFolders, result: Result | None) -> None:
    """Write the records of a run, and print their folders. Without a run, print that there are no records."""
    if not folders.folders_by_option:
        return
    if result is None:
        output.print_note("no schedule failed, so no records are written")
        return
    from ddpsim.scenarios.records.writing import write_records

    write_records(result, folders)
    for folder in folders.folders_by_option.values():
        output.print_text(f"records  {folder}")
