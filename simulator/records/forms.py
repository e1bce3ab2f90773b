"""Which form a file has, by what is in it, and its record."""

from __future__ import annotations

import msgspec

from ddpsim.simulator.records import clog, flight_recorder, plain_pickle
from ddpsim.simulator.records.record import RankRecord, RecordError
from ddpsim.simulator.records.texts import plain

EXPECTED = "a dump of torch's flight recorder (pickle or JSON) or a clog"


def looks_like_record(data: bytes) -> bool:
    """True for what begins as a record of some form does."""
    return data.startswith(b"\x80") or clog.is_log(data) or data.lstrip()[:1] == b"{"


def read(data: bytes, source: str) -> RankRecord:
    """The record in a file, whose path may say its rank. Raises RecordError."""
    if clog.is_log(data):
        return clog.read(data, source)
    if data.startswith(b"\x80"):
        value = plain_pickle.loads(data)
    elif data.lstrip()[:1] == b"{":
        value = _parsed(data)
    else:
        raise RecordError("an empty file" if not data else f"a file that is no record, expected {EXPECTED}")
    if not flight_recorder.is_dump(value):
        raise RecordError(f"plain values without version and entries, expected {EXPECTED}")
    return flight_recorder.read(value, source)


def _parsed(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RecordError(f"JSON that is damaged or cut short ({plain(str(error))})") from error
