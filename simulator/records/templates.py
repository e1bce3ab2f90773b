"""Pickled dumps that are like one that was read before, but for times and names: known by their bytes.

Most ranks of a job leave the same entries but for times and the names of groups, and unpickling these takes most of the
time. A pickle is a row of opcodes, so two of the same opcodes in which only numbers and texts differ that nobody reads
make the same calls. A template is a pickle with these left open. Whether another one fits it is a comparison of bytes;
what is open there and counts (whatever stands beside the entries, and the names of groups) is read as always.
"""

from __future__ import annotations

import pickletools
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from struct import Struct
from typing import Any, NamedTuple

from ddpsim.simulator.records import plain_pickle
from ddpsim.simulator.records.entries import ReadEntries, label, rows_of, stacks_of
from ddpsim.simulator.records.rank_record import RecordError

_MOST_BYTES = 2**24
"""Of a pickle that is worth it: opcodes are followed in Python."""
_TEXT = "BINUNICODE"
_LENGTH = 4
"""Such a text has so many bytes before it, which say how long it is."""
_UNREAD = {"LONG1": 2, "BINFLOAT": 1}
"""Numbers that times take, with how many bytes stand before their value."""
_BESIDE = _UNREAD | {"BININT": 1, "BININT1": 1, "BININT2": 1}
"""Those beside the entries, which are read from each dump."""
_MARK = "\0"
"""Begins the texts that stand for open ones."""

Value = dict[str, Any]


class _Op(NamedTuple):
    name: str
    argument: Any
    position: int


class _Open(NamedTuple):
    """Bytes of a pickle that may be others."""

    begin: int
    end: int
    mark: str | None
    """Stands for a text, which may have another length, too: that lies in these bytes."""


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of a pickle: pieces of which some bytes count, and between two of them an open text."""

    pieces: tuple[tuple[Struct, tuple[bytes, ...]], ...]

    def match(self, data: bytes, at: int) -> tuple[int, list[bytes]] | None:
        """Where the section that begins at `at` ends, and its open texts; None if it is another one."""
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
class Template:
    """A pickled dump with all left open that does not say what was called."""

    head: _Section
    """Up to the first entry."""
    body: _Section
    """The entries."""
    tail: _Section
    groups: tuple[tuple[str, str], ...]
    """Name and description of each group, or the marks of open texts."""
    found: ReadEntries

    def read(self, data: bytes) -> tuple[Value, ReadEntries] | None:
        """The dump in a pickle without its entries, and what these come to; None if the pickle is another one."""
        parts, at = [], 0
        for section in (self.head, self.body, self.tail):
            matched = section.match(data, at)
            if matched is None:
                return None
            parts.append((at, *matched))
            at = matched[0]
        (_, begin, _), (_, end, _), _ = parts
        if at != len(data):
            return None
        try:
            texts = [str(text, "utf-8", "surrogatepass") for _, _, several in parts for text in several]
            value = plain_pickle.loads(data[:begin] + data[end:])
        except (RecordError, UnicodeDecodeError):  # it says what is wrong when it is read as a whole
            return None
        return self._with_groups(value, texts)

    def _with_groups(self, value: Value, texts: Sequence[str]) -> tuple[Value, ReadEntries] | None:
        by_mark = dict(zip(_marks(), texts, strict=False))
        names = [tuple(by_mark.get(each, each) for each in group) for group in self.groups]
        labels = tuple(dict.fromkeys(label(name, description) for name, description in names))
        if value.get("entries") != [] or len(labels) != len(names):
            return None
        return value, self.found._replace(groups=labels)


def template_of(data: bytes, value: Value, found: ReadEntries) -> Template | None:
    """The template of a pickle whose value is known, and what its entries came to; None where it has none."""
    if len(data) > _MOST_BYTES:
        return None
    ops = [_Op(opcode.name, argument, position or 0) for opcode, argument, position in pickletools.genops(data)]
    span = _span_of_entries(ops)
    if span is None or any(op.name == _TEXT and "" < op.argument < " " for op in ops):  # one might be like a mark
        return None
    opened = list(_opened(data, ops, span, frozenset(_fixed_texts(value))))
    groups = _marked_groups(_marked(data, opened), value, {place.mark for place in opened})
    if groups is None:
        return None
    bounds = (0, *span, len(data))
    head, body, tail = (_section(data, opened, *bounds[part : part + 2]) for part in range(3))
    return Template(head, body, tail, groups, found)


def _span_of_entries(ops: Sequence[_Op]) -> tuple[int, int] | None:
    """From where to where the entries lie, with what puts them into their list; None where that does not show."""
    key = next((at for at, op in enumerate(ops) if (op.name, op.argument) == (_TEXT, "entries")), len(ops))
    first = next((at for at in range(key, len(ops)) if ops[at].name == "MARK"), len(ops))
    depth = 0
    for at in range(first, len(ops) - 1):
        name, following = ops[at].name, ops[at + 1]
        depth += (name == "MARK") - (name in ("APPENDS", "SETITEMS", "TUPLE"))
        if not depth and following.name != "MARK":
            return ops[first].position, following.position
    return None


def _fixed_texts(value: Value) -> Iterator[str]:
    """The texts that say what was called, and the keys."""
    yield from value
    entries = value["entries"]
    for entry in entries:
        yield from entry
        yield from (entry["profiling_name"], entry["state"] or "", *entry["input_dtypes"], *entry["output_dtypes"])
    for frame in _frames(entries):
        yield from (each for each in (*frame, frame.get("name"), frame.get("filename")) if isinstance(each, str))


def _frames(entries: Sequence[Any]) -> Iterable[Any]:
    """All frames of all stacks, each once."""
    frames = (frame for stack in stacks_of(entries) for frame in stack if isinstance(frame, dict))
    return {id(frame): frame for frame in frames}.values()


def _opened(data: bytes, ops: Iterable[_Op], span: tuple[int, int], fixed: frozenset[str]) -> Iterator[_Open]:
    """The bytes of all numbers and texts that may be others."""
    marks, seen = _marks(), set[str]()
    for (name, argument, position), following in pairwise((*ops, _Op("", None, len(data)))):
        is_inside = span[0] <= position < span[1]
        before = (_UNREAD if is_inside else _BESIDE).get(name)
        if before is not None:
            yield _Open(position + before, following.position, None)
        elif name == _TEXT and argument in seen:
            # Written again and again it keeps its length, or else each would end a piece.
            begin = position + 1 + _LENGTH
            yield _Open(begin, following.position, None)
        elif name == _TEXT and argument not in fixed:
            yield _Open(position + 1, following.position, next(marks))
            seen.update([argument] * is_inside)


def _marks() -> Iterator[str]:
    return (f"{_MARK}{number}" for number in count())


def _marked(data: bytes, opened: Iterable[_Open]) -> bytes:
    """The pickle with another value in place of each that is open: of texts their marks."""
    marked, at = [], 0
    for begin, end, mark in opened:
        if mark is not None:
            other = len(mark).to_bytes(_LENGTH, "little") + mark.encode()
        else:
            other = bytes(each ^ 1 for each in data[begin:end])
        marked += [data[at:begin], other]
        at = end
    return b"".join([*marked, data[at:]])


def _marked_groups(marked: bytes, value: Value, marks: Container[str | None]) -> tuple[tuple[str, str], ...] | None:
    """The groups of a dump whose open values are marked; None if one of these says what was called."""
    try:
        entries, own = plain_pickle.loads(marked)["entries"], value["entries"]
    except RecordError:
        return None
    groups, own_groups = (dict.fromkeys(tuple(entry["process_group"]) for entry in each) for each in (entries, own))
    names, own_names = (tuple(chain.from_iterable(each)) for each in (groups, own_groups))
    is_named = len(names) == len(own_names) and all(
        name == before or name in marks for name, before in zip(names, own_names, strict=True)
    )
    is_same = rows_of(entries) == rows_of(own) and _lines(entries) == _lines(own)
    return tuple(groups) if is_named and is_same else None


def _lines(entries: Sequence[Any]) -> list[Any]:
    return [frame.get("line") for frame in _frames(entries)]


def _section(data: bytes, opened: Iterable[_Open], begin: int, end: int) -> _Section:
    pieces, form, fixed = [], "", []
    for place in (*(each for each in opened if begin <= each.begin < end), _Open(end, end, _MARK)):
        form += f"{place.begin - begin}s"
        fixed.append(data[begin : place.begin])
        begin = place.end
        if place.mark is not None:
            pieces.append((Struct("<" + form), tuple(fixed)))
            form, fixed = "", []
        else:
            form += f"{place.end - place.begin}x"
    return _Section(tuple(pieces))
