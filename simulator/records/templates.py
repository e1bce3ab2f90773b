"""Recognise pickled dumps that equal an earlier one except for times and names, by comparing their bytes.

Most ranks of a job leave the same entries except for times and group names, and unpickling them takes most of the time.
A pickle is a sequence of opcodes. So two pickles with the same opcodes make the same calls, if only ignored numbers and
texts differ. A template is a pickle in which these may differ, and it is matched by a comparison of bytes. Of the
values that may differ, those outside the entries and the names of groups are read normally.
"""

import pickletools
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from struct import Struct
from typing import Any, NamedTuple

from ddpsim.simulator.records import plain_pickle
from ddpsim.simulator.records.entries import ReadEntries, compared_fields, group_label, stack_frames
from ddpsim.simulator.records.rank_record import RecordError

_MOST_BYTES = 2**24
"""The largest pickle for which a template is made, in bytes: opcodes are followed in Python, which is slow."""
_TEXT = "BINUNICODE"
_LENGTH = 4
"""The number of bytes that hold a text's length, before a text that may differ."""
_UNREAD = {"LONG1": 2, "BINFLOAT": 1}
"""Opcodes of numbers that times use, with the number of bytes before the value."""
_BESIDE = _UNREAD | {"BININT": 1, "BININT1": 1, "BININT2": 1}
"""Opcodes of numbers outside the entries, which are read from each dump, with the number of bytes before the value."""
_MARK = "\0"
"""The first character of each placeholder of a text that may differ."""

Value = dict[str, Any]


class _Opcode(NamedTuple):
    name: str
    argument: Any
    position: int


class _OpenBytes(NamedTuple):
    """Bytes of a pickle that may differ in the next dump."""

    begin: int
    end: int
    mark: str | None
    """The placeholder of a text, whose length is in these bytes and may differ, too; None for a number."""


@dataclass(frozen=True, slots=True)
class _DumpTemplateSection:
    """A part of a pickle: fixed pieces, in which some bytes are ignored, and between them texts that may differ."""

    pieces: tuple[tuple[Struct, tuple[bytes, ...]], ...]

    def match_bytes(self, data: bytes, at: int) -> tuple[int, list[bytes]] | None:
        """Return where the part that begins at `at` ends, and its texts that may differ; None if other bytes differ."""
        texts: list[bytes] = []
        for number, (form, fixed) in enumerate(self.pieces):
            if number:
                begin = at + _LENGTH
                at = begin + int.from_bytes(data[at:begin], "little")
                texts.append(data[begin:at])
            if at + form.size > len(data) or form.unpack_from(data, at) != fixed:
                return None
            at += form.size
        return at, texts


@dataclass(frozen=True, slots=True)
class DumpTemplate:
    """A pickled dump in which all bytes that do not describe a call may differ."""

    sections: tuple[_DumpTemplateSection, ...]
    """The parts of the pickle before the entries, with the entries, and after them."""
    groups: tuple[tuple[str, str], ...]
    """For each group, its name and description, or placeholders of texts that may differ."""
    found: ReadEntries

    def read_dump(self, data: bytes) -> tuple[Value, ReadEntries] | None:
        """Return a pickle's dump without its entries, and the parsed entries; None if the template does not fit."""
        found: list[bytes] = []
        ends = [0]
        for section in self.sections:
            matched = section.match_bytes(data, ends[-1])
            if matched is None:
                return None
            ends.append(matched[0])
            found += matched[1]
        if ends[-1] != len(data):
            return None
        try:
            texts = [str(text, "utf-8", "surrogatepass") for text in found]
            value = plain_pickle.load_plain(data[: ends[1]] + data[ends[2] :])
        except (RecordError, UnicodeDecodeError):  # reading the whole dump reports the problem
            return None
        by_mark = dict(zip(_placeholders(), texts, strict=False))
        names = [tuple(by_mark.get(each, each) for each in group) for group in self.groups]
        labels = tuple(dict.fromkeys(group_label(name, description) for name, description in names))
        if value.get("entries") != [] or len(labels) != len(names):
            return None
        return value, self.found._replace(groups=labels)


def make_dump_template(data: bytes, value: Value, found: ReadEntries) -> DumpTemplate | None:
    """Return the template of a pickle whose value and parsed entries are known; None if none can be made."""
    if len(data) > _MOST_BYTES:
        return None
    ops = [_Opcode(opcode.name, argument, position or 0) for opcode, argument, position in pickletools.genops(data)]
    span = _span_of_entries(ops)
    if span is None or any(op.name == _TEXT and "" < op.argument < " " for op in ops):  # could equal a placeholder
        return None
    opened = list(_find_open_bytes(data, ops, span, frozenset(_texts_of_calls(value))))
    groups = _groups_with_placeholders(_with_placeholders(data, opened), value, {place.mark for place in opened})
    if groups is None:
        return None
    sections = tuple(_make_section(data, opened, *bounds) for bounds in pairwise((0, *span, len(data))))
    return DumpTemplate(sections, groups, found)


def _span_of_entries(ops: Sequence[_Opcode]) -> tuple[int, int] | None:
    """Return the byte range of the entries, with the opcodes that append them to their list; None if it is unclear."""
    key = next((at for at, op in enumerate(ops) if (op.name, op.argument) == (_TEXT, "entries")), len(ops))
    first = next((at for at in range(key, len(ops)) if ops[at].name == "MARK"), len(ops))
    depth = 0
    for at in range(first, len(ops) - 1):
        name, following = ops[at].name, ops[at + 1]
        depth += (name == "MARK") - (name in ("APPENDS", "SETITEMS", "TUPLE"))
        if not depth and following.name != "MARK":
            return ops[first].position, following.position
    return None


def _texts_of_calls(value: Value) -> Iterator[str]:
    """Yield the texts in a dump that describe calls, and the dicts' keys."""
    yield from value
    entries = value["entries"]
    for entry in entries:
        yield from entry
        yield from (entry["profiling_name"], entry["state"] or "", *entry["input_dtypes"], *entry["output_dtypes"])
    for frame in _all_frames(entries):
        yield from (each for each in (*frame, frame.get("name"), frame.get("filename")) if isinstance(each, str))


def _all_frames(entries: Sequence[Any]) -> Iterable[Any]:
    frames = (frame for stack in stack_frames(entries) for frame in stack if isinstance(frame, dict))
    return {id(frame): frame for frame in frames}.values()


def _find_open_bytes(
    data: bytes, ops: Iterable[_Opcode], span: tuple[int, int], fixed: frozenset[str]
) -> Iterator[_OpenBytes]:
    """Yield the bytes of all numbers and texts in a pickle that may differ."""
    marks, seen = _placeholders(), set[str]()
    for (name, argument, position), following in pairwise((*ops, _Opcode("", None, len(data)))):
        is_inside = span[0] <= position < span[1]
        before = (_UNREAD if is_inside else _BESIDE).get(name)
        if before is not None:
            yield _OpenBytes(position + before, following.position, None)
        elif name == _TEXT and argument in seen:
            # A text that occurs often keeps its length; otherwise each occurrence would end a piece.
            yield _OpenBytes(position + 1 + _LENGTH, following.position, None)
        elif name == _TEXT and argument not in fixed:
            yield _OpenBytes(position + 1, following.position, next(marks))
            seen.update([argument] * is_inside)


def _placeholders() -> Iterator[str]:
    return (f"{_MARK}{number}" for number in count())


def _with_placeholders(data: bytes, opened: Iterable[_OpenBytes]) -> bytes:
    """Return the pickle with another value in place of each value that may differ; texts become their placeholders."""
    marked, at = [], 0
    for begin, end, mark in opened:
        if mark is not None:
            other = len(mark).to_bytes(_LENGTH, "little") + mark.encode()
        else:
            other = bytes(each ^ 1 for each in data[begin:end])
        marked += [data[at:begin], other]
        at = end
    return b"".join([*marked, data[at:]])


def _groups_with_placeholders(
    marked: bytes, value: Value, marks: Container[str | None]
) -> tuple[tuple[str, str], ...] | None:
    """Return a dump's groups with placeholders; None if a placeholder is in a field that describes a call."""
    try:
        entries, own = plain_pickle.load_plain(marked)["entries"], value["entries"]
    except RecordError:
        return None
    groups, own_groups = (dict.fromkeys(tuple(entry["process_group"]) for entry in each) for each in (entries, own))
    names, own_names = (tuple(chain.from_iterable(each)) for each in (groups, own_groups))
    pairs = zip(names, own_names, strict=False)
    is_named = len(names) == len(own_names) and all(name == before or name in marks for name, before in pairs)
    is_same = compared_fields(entries) == compared_fields(own) and _line_numbers(entries) == _line_numbers(own)
    return tuple(groups) if is_named and is_same else None


def _line_numbers(entries: Sequence[Any]) -> list[Any]:
    return [frame.get("line") for frame in _all_frames(entries)]


def _make_section(data: bytes, opened: Iterable[_OpenBytes], begin: int, end: int) -> _DumpTemplateSection:
    pieces, form, fixed = [], "", []
    for place in (*(each for each in opened if begin <= each.begin < end), _OpenBytes(end, end, _MARK)):
        form += f"{place.begin - begin}s"
        fixed.append(data[begin : place.begin])
        begin = place.end
        if place.mark is not None:
            pieces.append((Struct("<" + form), tuple(fixed)))
            form, fixed = "", []
        else:
            form += f"{place.end - place.begin}x"
    return _DumpTemplateSection(tuple(pieces))
