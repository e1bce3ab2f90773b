"""Which form a file has, by what is in it, and its record."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ddpsim.simulator.records import clog, flight_recorder, plain_pickle, salvage
from ddpsim.simulator.records.entries import EntriesReader
from ddpsim.simulator.records.record import RankRecord, RecordError
from ddpsim.simulator.records.texts import plain

EXPECTED = "a dump of torch's flight recorder (pickle or JSON) or a clog"


def looks_like_record(data: bytes) -> bool:
    """True for what begins as a record of some form does."""
    return data.startswith(b"\x80") or clog.is_log(data) or data.lstrip()[:1] == b"{"


def read(data: bytes, source: str, entries: EntriesReader | None = None) -> RankRecord:
    """The record in a file, whose path may say its rank; `entries` reads those of all of a job. Raises RecordError."""
    if clog.is_log(data):
        return clog.read(data, source)
    is_cut = False
    if data.startswith(b"\x80"):
        value, is_cut = _unpickled(data)
    elif data.lstrip()[:1] == b"{":
        value = _parsed(data)
    else:
        raise RecordError("an empty file" if not data else f"a file that is no record, expected {EXPECTED}")
    if not flight_recorder.is_dump(value):
        raise RecordError(f"plain values without version and entries, expected {EXPECTED}")
    record = flight_recorder.read(value, source, entries)
    return replace(record, is_cut=True) if is_cut else record


def _unpickled(data: bytes) -> tuple[object, bool]:
    """The value in a pickle, and whether the pickle is cut short: then what was whole before the cut."""
    try:
        return plain_pickle.loads(data), False
    except plain_pickle.CutShortError as error:
        closed = salvage.closed(data)
        value = None if closed is None else plain_pickle.loads(closed)
        if not isinstance(value, dict) or not flight_recorder.is_dump(value):
            raise error
        return flight_recorder.without_half_an_entry(value), True


def _parsed(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RecordError(f"JSON that is damaged or cut short ({plain(str(error))})") from error
