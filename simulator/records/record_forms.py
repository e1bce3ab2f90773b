"""Detects the format of a record file (flight recorder dump or clog) by its contents, and reads the file."""

from dataclasses import replace
from typing import Any

import msgspec

from ddpsim.simulator.records import clog, flight_recorder, plain_pickle
from ddpsim.simulator.records.entries import EntriesReader, ReadEntries
from ddpsim.simulator.records.rank_record import CallLog, RankRecord, RecordError
from ddpsim.simulator.records.record_texts import printable_text
from ddpsim.simulator.records.templates import DumpTemplate, make_dump_template

EXPECTED = "a dump of torch's flight recorder (pickle or JSON) or a clog"
_MOST_TEMPLATES = 8
"""The most templates that a dump is compared with: making one takes as long as reading ten dumps."""


def looks_like_record(data: bytes) -> bool:
    """Return True if the data begin like a flight recorder dump or a clog."""
    return data.startswith(b"\x80") or clog.is_clog(data) or data.lstrip()[:1] == b"{"


class JobReader:
    """Reads a job's record files, one after another; parts that files share are read only once."""

    def __init__(self, most_templates: int = _MOST_TEMPLATES) -> None:
        self._entries = EntriesReader()
        self._call_logs: set[CallLog] = set()
        self._templates: list[DumpTemplate] = []
        """Templates of dumps (templates.py); the template that matched last is first."""
        self._untried = most_templates

    def read_record(self, data: bytes, source: str) -> RankRecord:
        """Return the record in a file. The file's path may contain its rank. Raises RecordError."""
        if clog.is_clog(data):
            return clog.read_clog(data, source)
        if data.startswith(b"\x80"):
            return self._read_pickle(data, source)
        if data.lstrip()[:1] == b"{":
            return self._read_dump(_parse_json(data), source)
        raise RecordError("an empty file" if not data else f"a file that is no record, expected {EXPECTED}")

    def _read_pickle(self, data: bytes, source: str) -> RankRecord:
        known = self._match_template(data)
        if known is not None:
            return flight_recorder.read_dump(known[0], source, lambda _: known[1])
        value, is_cut = _unpickle(data)
        record = self._read_dump(value, source)
        if is_cut:
            return replace(record, is_cut=True)
        self._add_template(data, value, record.call_log)
        return record

    def _match_template(self, data: bytes) -> tuple[Any, ReadEntries] | None:
        for index, template in enumerate(self._templates):
            read = template.read_dump(data)
            if read is not None:
                self._templates.insert(0, self._templates.pop(index))
                return read
        return None

    def _read_dump(self, value: object, source: str) -> RankRecord:
        if not flight_recorder.is_dump(value):
            raise RecordError(f"plain values without version and entries, expected {EXPECTED}")
        return flight_recorder.read_dump(value, source, self._entries.read_entries)

    def _add_template(self, data: bytes, value: Any, call_log: CallLog) -> None:
        """Make a template from a pickle with the same entries as an earlier pickle: more such pickles may follow."""
        if call_log not in self._call_logs:
            self._call_logs.add(call_log)
        elif self._untried and call_log.steps:
            self._untried -= 1
            template = make_dump_template(data, value, self._entries.read_entries(value["entries"]))
            self._templates += [] if template is None else [template]


def _unpickle(data: bytes) -> tuple[object, bool]:
    """Return the value in a pickle, and whether the pickle is cut off: then the value is its complete part."""
    try:
        return plain_pickle.load_plain(data), False
    except plain_pickle.CutShortError as error:
        closed = plain_pickle.complete_cut_pickle(data)
        value = None if closed is None else plain_pickle.load_plain(closed)
        if not isinstance(value, dict) or not flight_recorder.is_dump(value):
            raise error
        return flight_recorder.without_incomplete_entry(value), True


def _parse_json(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RecordError(f"JSON that is damaged or cut short ({printable_text(str(error))})") from error
