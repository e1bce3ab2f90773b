"""Records of simulated runs, as files: what the ranks of a real job would have left."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.records.as_clog import log_of
from ddpsim.simulator.records.as_flight_recorder import dump_of
from ddpsim.simulator.records.journal import Journal, journal
from ddpsim.simulator.whole_file import write_whole

if TYPE_CHECKING:
    from ddpsim.simulator.result import Result

FLIGHT_RECORDER, CLOG = "rank_{}", "clog_rank_{}.log"


def write_records(result: Result, *, flight_recorder: Path | None, clog: Path | None) -> None:
    """Write the records of a run into folders, a file of each rank. Raises UsageError where that cannot be done."""
    if flight_recorder is None and clog is None:
        return
    if not result.trace:
        raise UsageError("the run has no trace to write records of, expected a simulated one: leave --transport out")
    noted = journal(result.trace, result.world_size)
    for folder, name, form in ((flight_recorder, FLIGHT_RECORDER, dump_of), (clog, CLOG, log_of)):
        if folder is not None:
            _write(folder, name, form, noted)


def check_folders(*folders: Path | None) -> None:
    """Raise UsageError for a folder that cannot be made or holds records already, before anything runs."""
    for folder in folders:
        if folder is None:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            own = [path.name for path in folder.iterdir() if re.fullmatch(r"(clog_)?rank_\d+([.]log)?", path.name)]
        except OSError as error:
            raise UsageError(f"{folder} cannot be made a folder ({error.strerror}): give another one") from error
        if own:
            raise UsageError(f"{folder} holds records already, such as {min(own)}, expected none: give another folder")


def _write(folder: Path, name: str, form: Callable[[Journal, int], bytes], noted: Journal) -> None:
    try:
        for rank in range(noted.world_size):
            write_whole(folder / name.format(rank), form(noted, rank))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to ({error.strerror}): give another folder") from error
