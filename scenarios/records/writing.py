"""Write records of simulated runs as files, like those that the ranks of a real job leave."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.records.as_clog import make_clog
from ddpsim.simulator.records.as_flight_recorder import make_dump
from ddpsim.simulator.records.run_log import RunLog, make_run_log
from ddpsim.simulator.whole_file import write_atomically

if TYPE_CHECKING:
    from ddpsim.simulator.result import Result

_OURS = re.compile(r"rank_\d+|clog_rank_\d+[.]log|chakra[.]\d+[.]et")


@dataclass(frozen=True, slots=True)
class RecordFolders:
    """The folders for the records of a run, one for each form of record; None for a form that is not written."""

    flight_recorder: Path | None = None
    clog: Path | None = None
    chakra: Path | None = None

    @property
    def folders_by_option(self) -> dict[str, Path]:
        """Return the folders that are given, by the command-line option that gives them."""
        given = {f"--{each.name.replace('_', '-')}": getattr(self, each.name) for each in fields(self)}
        return {option: folder for option, folder in given.items() if folder is not None}


def write_records(result: Result, folders: RecordFolders) -> None:
    """Write the records of a run into folders, one file per rank. Raises UsageError if that is not possible."""
    if not folders.folders_by_option:
        return
    if not result.trace:
        raise UsageError("only a simulated run has a trace to write records from: leave --transport out")
    log = make_run_log(result.trace, result.world_size)
    for folder, name, form in (
        (folders.flight_recorder, "rank_{}", make_dump),
        (folders.clog, "clog_rank_{}.log", make_clog),
        (folders.chakra, "chakra.{}.et", _chakra_trace),
    ):
        try:
            for rank in range(log.world_size if folder else 0):
                write_atomically(Path(folder or "", name.format(rank)), form(log, rank))
        except OSError as error:
            raise UsageError(f"{folder} cannot be written to ({error.strerror}): give another folder") from error


def create_record_folders(folders: RecordFolders) -> None:
    """Create the folders for records. Raises UsageError if that fails, or if a folder already has records."""
    if folders.chakra is not None:
        from ddpsim.scenarios.records.chakra import check_chakra_is_installed

        check_chakra_is_installed()
    for folder in folders.folders_by_option.values():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            own = [path.name for path in folder.iterdir() if _OURS.fullmatch(path.name)]
        except OSError as error:
            raise UsageError(f"folder {folder} cannot be created ({error.strerror}): give another one") from error
        if own:
            raise UsageError(f"{folder} already has records, such as {min(own)}: give another folder")


def _chakra_trace(log: RunLog, rank: int) -> bytes:
    from ddpsim.scenarios.records.chakra import chakra_trace_of

    return chakra_trace_of(log, rank)
