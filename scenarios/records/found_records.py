"""Find all records of jobs under some paths, and report which files could not be read."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.scenarios.records.record_files import CutOffArchive, RecordSource, find_sources, read_pieces
from ddpsim.simulator.imports import pause_garbage_collection
from ddpsim.simulator.records.rank_record import RankRecord, RecordError
from ddpsim.simulator.records.record_forms import EXPECTED, JobReader, looks_like_record
from ddpsim.simulator.wording import join_names

_BYTES_OF_PROCESS = 2**24
"""The number of bytes of records from which on another process that reads saves time."""
_MOST_PROCESSES = 8


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """The records found under some paths."""

    records: tuple[RankRecord, ...]
    left_out: tuple[str, ...] = ()
    """Files that look like records but cannot be read, and unreadable ends of archives, each with the reason."""
    others: int = 0
    """The number of other files: those that do not look like records."""


def find_records(paths: Sequence[str]) -> FoundRecords:
    """Read all records under the paths. Raises RecordError if a named file is none, or if there is none at all."""
    with pause_garbage_collection():
        parts = _split_among_processes(list(find_sources(paths)))
        if len(parts) == 1:
            found = [_read_records(parts[0])]
        else:
            with multiprocessing.get_context("fork").Pool(len(parts)) as pool:
                found = pool.map(_read_records, parts)
    records = tuple(record for part in found for record in part.records)
    left_out = tuple(each for part in found for each in part.left_out)
    others = sum(part.others for part in found)
    if not records:
        why = f" ({left_out[0]})" if left_out else f" among {others} files" if others else ""
        raise RecordError(f"found no record in {join_names(list(paths), 3)}{why}, expected {EXPECTED} of each rank")
    return FoundRecords(records, left_out, others)


def _split_among_processes(found: Sequence[RecordSource]) -> list[Sequence[RecordSource]]:
    """Split the files into parts of about equal size, one for each process worth starting."""
    sizes = [_file_size(source) for source in found]
    # A fork copies no other thread, so locks held by one would stay locked.
    can_fork = sys.platform == "linux" and threading.active_count() == 1
    cores = len(os.sched_getaffinity(0)) if can_fork else 1
    count = max(1, min(cores, _MOST_PROCESSES, sum(sizes) // _BYTES_OF_PROCESS))
    parts: list[list[RecordSource]] = [[] for _ in range(count)]
    before, total = 0, sum(sizes) or 1
    for source, size in zip(found, sizes, strict=True):
        parts[min(before * count // total, count - 1)].append(source)
        before += size
    return [part for part in parts if part] or [()]


def _file_size(source: RecordSource) -> int:
    try:
        return os.path.getsize(source.path)
    except OSError:
        return 0


def _read_records(part: Sequence[RecordSource]) -> FoundRecords:
    job = JobReader()
    records, left_out, others = [], [], 0
    for piece in (piece for source in part for piece in read_pieces(source)):
        if isinstance(piece, CutOffArchive):
            left_out.append(str(piece))
            continue
        if not piece.is_named and not looks_like_record(piece.data):
            others += 1
            continue
        try:
            records.append(job.read_record(piece.data, piece.path))
        except RecordError as error:
            if piece.is_named:
                raise RecordError(f"{piece.path}: {error}") from error
            left_out.append(f"{piece.path}: {error}")
    return FoundRecords(tuple(records), tuple(left_out), others)
