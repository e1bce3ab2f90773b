"""`--flight-recorder DIR` and `--clog DIR`: what the ranks of a real job would have left of a simulated run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddpsim.scenarios.cli import output

if TYPE_CHECKING:
    from ddpsim import Result


def check_records(flight_recorder: Path | None, clog: Path | None, *, runs: int = 1, transport: str = "memory") -> None:
    """Make the folders. Raises UsageError for what cannot be written, before anything runs."""
    if flight_recorder is None and clog is None:
        return
    from ddpsim import UsageError
    from ddpsim.scenarios.records.writing import check_folders

    option = "--flight-recorder" if flight_recorder is not None else "--clog"
    if runs > 1:
        raise UsageError(f"{option} with {runs} runs, expected one: name one engine, one backend and one seed")
    if transport == "processes":
        raise UsageError(f"{option} with --transport processes, expected a simulated run: leave one of them out")
    check_folders(flight_recorder, clog)


def leave_records(flight_recorder: Path | None, clog: Path | None, result: Result | None) -> None:
    """Write the records of a run, and say where; without a run there are none, which is said, too."""
    if flight_recorder is None and clog is None:
        return
    if result is None:
        output.note("no schedule failed, so there is no run to leave the records of")
        return
    from ddpsim.scenarios.records.writing import write_records

    write_records(result, flight_recorder=flight_recorder, clog=clog)
    for folder in (flight_recorder, clog):
        if folder is not None:
            output.show(f"records  {folder}")
