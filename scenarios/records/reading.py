"""Paths in, records out, and what was left out on the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ddpsim.scenarios.records.files import pieces
from ddpsim.simulator.records.forms import EXPECTED, looks_like_record, read
from ddpsim.simulator.records.record import RankRecord, RecordError
from ddpsim.simulator.wording import listed


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of values are made and none is garbage: looking for some again and again takes most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Found:
    """The records under some paths."""

    records: tuple[RankRecord, ...]
    left_out: tuple[str, ...] = ()
    """Files that look like records and could not be read, each with the reason."""


def found_in(paths: Sequence[str]) -> Found:
    """Read all records under the paths: files, folders, patterns, tar and zip archives.

    In a folder or an archive, what is no record is passed over. Raises RecordError if a file that was named is none, or
    if there is no record at all.
    """
    with _without_collector():
        return _found_in(paths)


def _found_in(paths: Sequence[str]) -> Found:
    records, left_out, others = [], [], 0
    for piece in pieces(paths):
        if not piece.is_named and not looks_like_record(piece.data):
            others += 1
            continue
        try:
            records.append(read(piece.data, piece.path))
        except RecordError as error:
            if piece.is_named:
                raise RecordError(f"{piece.path}: {error}") from error
            left_out.append(f"{piece.path}: {error}")
    if not records:
        why = f" ({left_out[0]})" if left_out else f" among {others} files" if others else ""
        raise RecordError(f"found no record in {listed(list(paths), 3)}{why}, expected {EXPECTED} of each rank")
    return Found(tuple(records), tuple(left_out))
