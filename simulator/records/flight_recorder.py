"""torch's flight recorder: dumps of versions 2.x, as pickle or JSON, of NCCL, gloo and backends like them.

A dump says what each call was, to which group, with which sizes and dtypes, and how far it had come; not its reduction
and not its root. gloo's says nothing of the members of a group, records no message between two ranks, and calls what
has timed out "retired", as it does what is complete.

Numbers: `collective_seq_id` counts the collectives of a group from 1 on, on each rank; the calls of a coalesced group
share one, and the recorder closes it with an entry "coalesced". Of messages only the order is kept here: sends and
receives meet by their ranks, in order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from ddpsim.simulator.calls import Call, Shape, Signature
from ddpsim.simulator.records.operation_names import CPP_DTYPES, OPERATIONS
from ddpsim.simulator.records.rank_names import rank_in
from ddpsim.simulator.records.record import Progress, RankRecord, RecordedCall, RecordError
from ddpsim.simulator.records.stacks import site_of
from ddpsim.simulator.records.texts import plain

_DEFAULT = "default_pg"
_WITHOUT_DESCRIPTION = ("", "undefined")
_MESSAGE = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+)")
_BY_OUTPUT = frozenset({"scatter", "recv"})
"""Operations of which every rank has the output, and not every rank an input."""
_RANKS = re.compile(r"\[\s*(?:[0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)?\s*\]")
_MOST_MEMBERS = 2**20


class _Entry(msgspec.Struct):
    record_id: int
    profiling_name: str
    process_group: tuple[str, str] = ("", "")
    pg_id: int = 0
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    op_id: int = 0
    input_sizes: tuple[Shape, ...] = ()
    output_sizes: tuple[Shape, ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    state: str | None = ""
    retired: bool = False
    is_p2p: bool = False
    frames: Any = ()


class _Group(msgspec.Struct):
    name: str = ""
    desc: str = ""
    ranks: str | tuple[int, ...] = ()


class _Dump(msgspec.Struct):
    version: str
    entries: list[_Entry] = []
    pg_config: dict[str, _Group] = {}
    nccl_comm_state: Any = None


def is_dump(value: Any) -> bool:
    """True for what looks like a dump, of whatever version."""
    return isinstance(value, dict) and "version" in value and ("entries" in value or "pg_config" in value)


def read(value: Any, source: str) -> RankRecord:
    """The record in a dump, unpickled or parsed. Raises RecordError for one that is damaged, or of another version."""
    _check_version(value)
    try:
        dump = msgspec.convert(value, _Dump)
    except (msgspec.ValidationError, RecursionError, ValueError, OverflowError) as error:
        raise RecordError(f"a flight recorder's dump that is damaged ({plain(str(error))})") from error
    return _Reading(dump, source).record()


def _check_version(value: dict[str, Any]) -> None:
    version = value.get("version")
    if not isinstance(version, str) or not re.fullmatch(r"2[.]\d{1,4}", version):
        raise RecordError(
            f"a flight recorder's dump of version {str(version)[:20]!r}, expected 2.0 or a later one that begins with 2"
        )


class _Reading:
    """One dump on its way to a record."""

    def __init__(self, dump: _Dump, source: str) -> None:
        self._dump = dump
        self._source = source
        self._entries = sorted(dump.entries, key=lambda entry: entry.record_id)
        self._members = {
            _label(group.name or name, group.desc): _ranks(group) for name, group in dump.pg_config.items()
        }
        self._members = {label: ranks for label, ranks in self._members.items() if ranks}
        self._rank = self._own_rank()
        self._counts: Counter[str] = Counter()
        self._shared: dict[tuple[Any, ...], Signature] = {}

    def record(self) -> RankRecord:
        entries = self._entries
        return RankRecord(
            rank=self._rank,
            source=self._source,
            form=f"flight recorder {self._dump.version}",
            calls=_with_progress(tuple(self._calls())),
            members=self._members,
            lost=entries[0].record_id if entries else 0,
            not_recorded=_gaps(entries),
            is_in_one_group=_is_in_one_group(self._dump),
            lacks=("reduction", "root", "splits"),
        )

    def _own_rank(self) -> int:
        rank = _rank_of_communicators(self._dump.nccl_comm_state, self._members)
        rank = self._rank_of_messages() if rank is None else rank
        rank = rank_in(self._source) if rank is None else rank
        if rank is None:
            raise RecordError(
                "a flight recorder's dump that does not say its rank, and its name does not either: "
                'let the name end in the rank, as "rank_3" does'
            )
        return rank

    def _rank_of_messages(self) -> int | None:
        """The rank that its sends and receives name as its own, in the group of all."""
        for entry in self._entries:
            found = _MESSAGE.search(entry.profiling_name)
            members = self._members.get(_label(*entry.process_group))
            if found is not None and members:
                return _global(int(found[2][:9]), members)
        return None

    def _calls(self) -> Iterator[RecordedCall]:
        index, entries = 0, self._entries
        while index < len(entries):
            count = self._length_of_batch(index)
            if count == 1 and not entries[index].is_p2p and not _MESSAGE.search(entries[index].profiling_name):
                yield self._collective(entries[index : index + 1], entries[index])
            else:
                yield from self._batch(entries[index : index + count])
            index += count

    def _length_of_batch(self, index: int) -> int:
        """How many entries from `index` on are one coalesced group, its closing entry included; 1 for none."""
        entries = self._entries
        first = entries[index]
        if index + 1 == len(entries) or not _is_together(first, entries[index + 1]):  # nearly always
            return 1
        end = index + 1
        while end < len(entries) and _is_together(first, entries[end]):
            end += 1
        return end - index if _is_closing(entries[end - 1]) else 1

    def _batch(self, entries: Sequence[_Entry]) -> Iterator[RecordedCall]:
        messages = [entry for entry in entries if _MESSAGE.search(entry.profiling_name)]
        if messages:
            yield from map(self._message, messages)
            return
        closing = entries[-1] if _is_closing(entries[-1]) else None
        inner = [entry for entry in entries if entry is not closing] or list(entries)
        if closing is not None and closing.is_p2p and inner == [closing]:
            return
        yield self._collective(inner, closing or entries[-1])

    def _collective(self, entries: Sequence[_Entry], last: _Entry) -> RecordedCall:
        first = entries[0]
        group = _label(*first.process_group)
        signature = self._signature(entries)
        sequence = max(first.collective_seq_id - 1, 0)
        call = Call(self._rank, group, sequence, signature, site_of(_frames(first)))
        return RecordedCall(call, _progress(last))

    def _message(self, entry: _Entry) -> RecordedCall:
        found = _MESSAGE.search(entry.profiling_name)
        assert found is not None
        group = _label(*entry.process_group)
        members = self._members.get(group, ())
        peer = _global(int(found[3][:9]), members)
        sequence = self._counts[group]
        self._counts[group] += 1
        call = Call(self._rank, group, sequence, self._signature([entry]), site_of(_frames(entry)), peer=peer)
        return RecordedCall(call, _progress(entry))

    def _signature(self, entries: Sequence[_Entry]) -> Signature:
        """What must agree across ranks; equal ones are one object, so that comparing them is cheap."""
        key: tuple[Any, ...] = _key(entries[0]) if len(entries) == 1 else tuple(map(_key, entries))
        if key not in self._shared:
            self._shared[key] = _signature(entries)
        return self._shared[key]


def _key(entry: _Entry) -> tuple[Any, ...]:
    return entry.profiling_name, entry.input_sizes, entry.output_sizes, entry.input_dtypes, entry.output_dtypes


def _signature(entries: Sequence[_Entry]) -> Signature:
    operations = list(dict.fromkeys(_operation(entry.profiling_name) for entry in entries))
    operation = operations[0]
    if len(entries) > 1:
        operation = f"{operation.removesuffix('_coalesced')}_coalesced" if len(operations) == 1 else "coalesced"
    if operation == "barrier":
        return Signature(operation)
    shapes: list[Shape] = []
    dtypes: list[str] = []
    for entry in entries:
        by_output = _operation(entry.profiling_name) in _BY_OUTPUT or not entry.input_sizes
        shapes += entry.output_sizes if by_output else entry.input_sizes
        dtypes += entry.output_dtypes if by_output else entry.input_dtypes
    names = list(dict.fromkeys(CPP_DTYPES.get(dtype) or plain(dtype) for dtype in dtypes))
    return Signature(operation, tuple(shapes), " and ".join(names) or None)


def _operation(profiling_name: str) -> str:
    name = profiling_name.partition(":")[2] or profiling_name
    name = name.split(" ", 1)[0]
    return OPERATIONS.get(name) or plain(name) or "unnamed"


def _global(rank: int, members: tuple[int, ...]) -> int:
    """A rank of a group as a global one; as it is, where the members are not known."""
    return members[rank] if rank < len(members) else rank


def _frames(entry: _Entry) -> Sequence[Any]:
    return entry.frames if isinstance(entry.frames, (list, tuple)) else ()


def _is_closing(entry: _Entry) -> bool:
    return entry.profiling_name.endswith((":coalesced", "_coalesced"))


def _is_together(first: _Entry, other: _Entry) -> bool:
    """True if two entries belong to one coalesced group."""
    is_same = (
        first.p2p_seq_id == other.p2p_seq_id
        if first.is_p2p
        else first.collective_seq_id == other.collective_seq_id and first.collective_seq_id > 0
    )
    return (
        is_same
        and first.is_p2p == other.is_p2p
        and first.process_group == other.process_group
        and not _is_closing(first)
    )


def _with_progress(calls: tuple[RecordedCall, ...]) -> tuple[RecordedCall, ...]:
    """What was retired and had a later call of its group behind it was complete: a time-out would have raised."""
    if all(each.progress is not Progress.UNKNOWN for each in calls):
        return calls
    later: set[str] = set()
    found = []
    for each in reversed(calls):
        group = each.call.group
        is_done = each.progress is Progress.UNKNOWN and group in later
        found.append(each._replace(progress=Progress.COMPLETE) if is_done else each)
        later.add(group)
    return tuple(reversed(found))


def _progress(entry: _Entry) -> Progress:
    if entry.state == "completed":
        return Progress.COMPLETE
    return Progress.UNKNOWN if entry.retired else Progress.UNFINISHED


@lru_cache(maxsize=4096)
def _label(name: str, description: str) -> str:
    if description == _DEFAULT or not (name or description):  # gloo has no name for it
        return "default"
    return plain(name if description in _WITHOUT_DESCRIPTION else f"{description} ({name})")


def _ranks(group: _Group) -> tuple[int, ...]:
    """The members as a dump says them: a list, or a list written as a text."""
    ranks = _listed(group.ranks) if isinstance(group.ranks, str) else group.ranks
    if any(rank < 0 for rank in ranks):
        raise RecordError(f"a flight recorder's dump with a rank below 0 among the members of a group, {min(ranks)}")
    return ranks


@lru_cache(maxsize=256)
def _listed(text: str) -> tuple[int, ...]:
    if not _RANKS.fullmatch(text) or text.count(",") > _MOST_MEMBERS:
        raise RecordError(f"a flight recorder's dump with members {text[:40]!r}, expected a list of ranks")
    return tuple(int(rank) for rank in text.strip("[] ").split(",") if rank)


def _rank_of_communicators(state: Any, members: dict[str, tuple[int, ...]]) -> int | None:
    """The rank that NCCL's communicator of all ranks says it is; None if none says."""
    size = len(members.get("default", ()))
    for communicator in state.values() if isinstance(state, dict) else ():
        if isinstance(communicator, dict) and size and str(communicator.get("nranks")) == str(size):
            rank = str(communicator.get("rank"))
            if rank.isascii() and rank.isdigit() and int(rank[:9]) < size:
                return int(rank)
    return None


def _is_in_one_group(dump: _Dump) -> bool:
    """On gloo each new group of a rank takes the place of the one before, without members: only the first has them."""
    own = dump.pg_config.get("")
    return own is not None and len(dump.pg_config) == 1 and len(_ranks(own)) > 0


def _gaps(entries: Sequence[_Entry]) -> int:
    """How many operations were counted and not recorded."""
    last: dict[tuple[int, str], int] = {}
    gaps = 0
    for entry in entries:
        key = (entry.pg_id, entry.process_group[0])
        gaps += max(entry.op_id - last.get(key, entry.op_id) - 1, 0)
        last[key] = entry.op_id
    return gaps
