"""`--flight-recorder DIR`, `--clog DIR`, `--chakra DIR`: write the records of a simulated run as a real job would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpsim.scenarios.cli import output

if TYPE_CHECKING:
    from ddpsim import Result
    from ddpsim.scenarios.records.writing import RecordFolders


def check_records(folders: RecordFolders, *, runs: int = 1, transport: str = "memory") -> None:
    """Make the folders before anything runs. Raises UsageError if records cannot be written."""
    if not folders.named:
        return
    from ddpsim import UsageError
    from ddpsim.scenarios.records.writing import check_folders

    option = next(iter(folders.named))
    if runs > 1:
        raise UsageError(f"{option} with {runs} runs, expected one: name one engine, one backend and one seed")
    if transport == "processes":
        raise UsageError(f"{option} with --transport processes, expected a simulated run: leave one of them out")
    check_folders(folders)


def leave_records(folders: RecordFolders, result: Result | None) -> None:
    """Write the records of a run, and print their folders; without a run, print that there are no records."""
    if not folders.named:
        return
    if result is None:
        output.note("no schedule failed, so no records are written")
        return
    from ddpsim.scenarios.records.writing import write_records

    write_records(result, folders)
    for folder in folders.named.values():
        output.show(f"records  {folder}")
