"""Read the entries of a flight recorder's dump into a call log.

Parsing an entry takes longer than unpickling it, and most ranks of a job have the same entries except for times. So the
raw fields are first compared, in C, with those of earlier dumps, and equal ones are not parsed again.

Numbers: `collective_seq_id` counts the collectives of a group from 1, on each rank. The calls of a coalesced group
share one number, and the recorder closes the group with an entry "coalesced". Messages have only their order: the sends
and receives of two ranks are matched in order.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from ddpsim.simulator.calls import Shape, Signature, Site
from ddpsim.simulator.records.rank_record import DEFAULT, CallLog, CallProgress, LoggedCall, RecordError
from ddpsim.simulator.records.record_texts import CPP_DTYPES, OPERATIONS, number_names, printable_text, user_lines

T = TypeVar("T")

_MESSAGE = re.compile(r"(?:[^:]*:)?(send|recv) +(\d+)\s*(?:->|<-)\s*(\d+)")
_BY_OUTPUT = frozenset({"scatter", "recv"})
"""Operations with an output tensor on every rank, and an input tensor only on some ranks."""
_KEPT = 16
"""The number of parsed dumps that are kept for comparison."""
_MOST_ENTRIES = 2**22
_MOST_FRAMES = 256
_MOST_NUMBERS = 2**24
"""The most sizes (numbers in shapes) that a dump may have: a short pickle can refer to one list again and again."""
COMPARED = (
    "record_id",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "profiling_name",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "state",
    "retired",
    "is_p2p",
)
"""The fields of an entry that describe its call. An entry also has the process group, the stack, and times."""

_DEFAULT = "default_pg"
_WITHOUT_DESCRIPTION = ("", "undefined")


class _Entry(msgspec.Struct):
    record_id: int
    profiling_name: str
    process_group: tuple[str, str] = ("", "")
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


class ReadEntries(NamedTuple):
    """The parsed entries of a flight recorder dump."""

    call_log: CallLog
    groups: tuple[str, ...]
    """The groups of the call log, by their numbers."""
    sites: tuple[tuple[Site, Site | None], ...]
    """For each call, its line and the calling line in another file; () if the dump has no stacks."""
    lost: int
    """The number of calls that the dump has lost, before its first one."""
    gaps: int
    """The number of operations that the recorder counted and did not record."""
    own: tuple[int, int] | None
    """The number of a group, and this rank's number in that group, as derived from the messages of the rank."""


@dataclass(frozen=True, slots=True)
class _KnownDump:
    """A flight recorder dump that was parsed before."""

    rows: Sequence[Any]
    pattern: Sequence[int]
    """For each entry, the number of its group."""
    found: ReadEntries
    places: tuple[int, ...]
    """For each call, the index of its entry in the dump."""


class EntriesReader:
    """Parses the entries of a job's flight recorder dumps, one dump after another."""

    def __init__(self) -> None:
        self._known: list[_KnownDump] = []
        """The dumps parsed before; the dump that matched most recently is last."""
        self._signatures: dict[Any, Signature] = {}
        self._steps: dict[LoggedCall, LoggedCall] = {}

    def read_entries(self, entries: Any) -> ReadEntries:
        """Return a dump's entries, parsed. Raises RecordError for contents that no flight recorder writes."""
        if not isinstance(entries, (list, tuple)) or len(entries) > _MOST_ENTRIES:
            what = f"{len(entries)} entries" if isinstance(entries, (list, tuple)) else "entries that are no list"
            raise RecordError(f"a flight recorder's dump with {what}, expected a list of at most {_MOST_ENTRIES}")
        rows, grouped = compared_fields(entries), _groups_of_entries(entries)
        if rows is None or grouped is None:
            return self._read_whole_dump(entries).found
        groups, pattern = grouped
        for index in reversed(range(len(self._known))):
            known = self._known[index]
            if known.rows == rows and known.pattern == pattern:
                self._known.append(self._known.pop(index))
                sites, others = _sites_of_steps(entries, known.places), known.found.sites
                return known.found._replace(groups=groups, sites=others if sites == others else sites)
        known = self._read_whole_dump(entries, rows, pattern)
        self._known = [*self._known[1 - _KEPT :], known]
        return known.found

    def _read_whole_dump(
        self, entries: Sequence[Any], rows: Sequence[Any] = (), pattern: Sequence[int] = ()
    ) -> _KnownDump:
        _check_size_count(entries)
        read = convert_damaged_safely(entries, list[_Entry])
        order = sorted(range(len(read)), key=lambda index: read[index].record_id)
        ordered = [read[index] for index in order]
        names = number_names(group_label(*entry.process_group) for entry in read)
        begun = list(_logged_calls(ordered, names, self._signatures))
        steps = [self._steps.setdefault(step, step) for step in _complete_retired_calls([step for _, step in begun])]
        places = tuple(order[begin] for begin, _ in begun)
        lost = ordered[0].record_id if ordered else 0
        sites, own = _sites_of_steps(entries, places), _own_rank(ordered, names)
        found = ReadEntries(CallLog(tuple(steps)), tuple(names), sites, lost, _count_unrecorded(ordered), own)
        return _KnownDump(rows, pattern, found, places)


@lru_cache(maxsize=4096)
def group_label(name: str, description: str) -> str:
    """Return the name of a group in the call log."""
    if description == _DEFAULT or not (name or description):  # gloo gives it no name
        return DEFAULT
    return printable_text(name if description in _WITHOUT_DESCRIPTION else f"{description} ({name})")


def compared_fields(entries: Sequence[Any]) -> list[Any] | None:
    """Return the compared fields of each entry; None if an entry lacks a field, as in older versions."""
    try:
        return list(map(itemgetter(*COMPARED), entries))
    except (KeyError, TypeError):
        return None


def _groups_of_entries(entries: Sequence[Any]) -> tuple[tuple[str, ...], list[int]] | None:
    """Return the names of the groups, and each entry's group number; None if an entry is invalid."""
    try:
        column = list(map(tuple, map(itemgetter("process_group"), entries)))
        if any(list(map(type, name)) != [str, str] for name in set(column)):
            return None
        names = {name: group_label(*name) for name in dict.fromkeys(column)}
        numbers = number_names(names.values())
        by_name = {name: numbers[own] for name, own in names.items()}
        return tuple(numbers), [by_name[name] for name in column]
    except (KeyError, TypeError):
        return None


def convert_damaged_safely(value: Any, form: type[T]) -> T:
    """Return a part of a dump as a value of this type. Raises RecordError if the part is damaged."""
    try:
        return msgspec.convert(value, form)
    except (TypeError, msgspec.ValidationError, RecursionError, ValueError, OverflowError) as error:
        raise RecordError(f"a flight recorder's dump that is damaged ({printable_text(str(error))})") from error


def _check_size_count(entries: Sequence[Any]) -> None:
    count = 0
    for entry in entries:
        for field in ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes"):
            sizes = entry.get(field) if isinstance(entry, dict) else None
            if isinstance(sizes, (list, tuple)):
                count += len(sizes)
                if count <= _MOST_NUMBERS:
                    count += sum(len(size) for size in sizes if isinstance(size, (list, tuple, str)))
        if count > _MOST_NUMBERS:
            raise RecordError(
                f"the dump has shapes with more than {_MOST_NUMBERS} numbers, expected fewer: leave it out"
            )


def _sites_of_steps(entries: Sequence[Any], places: Sequence[int]) -> tuple[tuple[Site, Site | None], ...]:
    """Return the line of each call. Each stack is examined once: recorders share the frames of equal stacks."""
    stacks = stack_frames(entries)
    if not any(stacks):
        return ()
    frames = [tuple(map(id, stack)) for stack in stacks]
    sites = {key: user_lines(stack) for key, stack in dict(zip(frames, stacks, strict=True)).items()}
    return tuple([sites[frames[place]] for place in places])


def stack_frames(entries: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the stack frames of each entry; () for an invalid entry."""
    stacks = [entry.get("frames", ()) for entry in entries]
    if set(map(type, stacks)) <= {list, tuple} and max(map(len, stacks), default=0) <= _MOST_FRAMES:
        return stacks
    return [stack[:_MOST_FRAMES] if isinstance(stack, (list, tuple)) else () for stack in stacks]


def _logged_calls(
    entries: Sequence[_Entry], names: Mapping[str, int], signatures: dict[Any, Signature]
) -> Iterator[tuple[int, LoggedCall]]:
    """Yield each call of the dump, with the index of its first entry."""
    messages: Counter[int] = Counter()
    index = 0
    while index < len(entries):
        count = _batch_length(entries, index)
        for offset, of_one, last in _calls_of(entries[index : index + count]):
            first = of_one[0]
            signature = _shared_signature(of_one, signatures)
            found = _MESSAGE.match(first.profiling_name)
            group, progress = names[group_label(*first.process_group)], _progress_of_entry(last)
            if found is None:
                step = LoggedCall(group, max(first.collective_seq_id - 1, 0), signature, progress)
            else:
                step = LoggedCall(group, messages[group], signature, progress, int(found[3][:9]))
                messages[group] += 1
            yield index + offset, step
        index += count


def _batch_length(entries: Sequence[_Entry], index: int) -> int:
    """Return how many entries from `index` form one coalesced batch of calls, with the closing entry; 1 if none do."""
    first, end = entries[index], index + 1
    while end < len(entries) and _is_in_same_group(first, entries[end]):
        end += 1
    return end - index if _closes_group(entries[end - 1]) else 1


def _calls_of(batch: Sequence[_Entry]) -> Iterator[tuple[int, Sequence[_Entry], _Entry]]:
    """Yield each call of a coalesced batch: its place in the batch, its entries, and the entry with its progress."""
    messages = [(place, entry) for place, entry in enumerate(batch) if _MESSAGE.match(entry.profiling_name)]
    if messages:
        yield from ((place, [entry], entry) for place, entry in messages)
        return
    closing = batch[-1] if _closes_group(batch[-1]) else None
    inner = [entry for entry in batch if entry is not closing] or list(batch)
    if len(batch) > 1 or not (closing is not None and closing.is_p2p):
        yield 0, inner, closing or batch[-1]


def _shared_signature(entries: Sequence[_Entry], known: dict[Any, Signature]) -> Signature:
    """Return the part of a call that must be equal on all ranks. Equal parts are one object, for fast comparison."""
    key = tuple([(e.profiling_name, e.input_sizes, e.output_sizes, e.input_dtypes, e.output_dtypes) for e in entries])
    if key not in known:
        known[key] = _make_signature(entries)
    return known[key]


def _make_signature(entries: Sequence[_Entry]) -> Signature:
    """Return the part of a call that must be equal on all ranks, from the call's entries."""
    operations = list(dict.fromkeys(_operation_name(entry.profiling_name) for entry in entries))
    operation = operations[0]
    if len(entries) > 1:
        operation = f"{operation.removesuffix('_coalesced')}_coalesced" if len(operations) == 1 else "coalesced"
    if operation == "barrier":
        return Signature(operation)
    shapes: list[Shape] = []
    dtypes: list[str] = []
    for entry in entries:
        by_output = _operation_name(entry.profiling_name) in _BY_OUTPUT or not entry.input_sizes
        shapes += entry.output_sizes if by_output else entry.input_sizes
        dtypes += entry.output_dtypes if by_output else entry.input_dtypes
    names = list(dict.fromkeys(CPP_DTYPES.get(dtype) or printable_text(dtype) for dtype in dtypes))
    return Signature(operation, tuple(shapes), " and ".join(names) or None)


def _operation_name(profiling_name: str) -> str:
    name = profiling_name.partition(":")[2] or profiling_name
    name = name.split(" ", 1)[0]
    return OPERATIONS.get(name) or printable_text(name) or "unnamed"


def _closes_group(entry: _Entry) -> bool:
    return entry.profiling_name.endswith((":coalesced", "_coalesced"))


def _is_in_same_group(first: _Entry, other: _Entry) -> bool:
    """Return True if two entries belong to one coalesced batch of calls."""
    if first.is_p2p != other.is_p2p or first.process_group != other.process_group or _closes_group(first):
        return False
    if first.is_p2p:
        return first.p2p_seq_id == other.p2p_seq_id
    return first.collective_seq_id == other.collective_seq_id and first.collective_seq_id > 0


def _complete_retired_calls(steps: list[LoggedCall]) -> list[LoggedCall]:
    """Mark "retired" calls as complete if a later call of the group follows: a time-out would have raised an error."""
    if all(step.progress is not CallProgress.UNKNOWN for step in steps):
        return steps
    later: set[int] = set()
    found = []
    for step in reversed(steps):
        is_done = step.progress is CallProgress.UNKNOWN and step.group in later
        found.append(step._replace(progress=CallProgress.COMPLETE) if is_done else step)
        later.add(step.group)
    return found[::-1]


def _progress_of_entry(entry: _Entry) -> CallProgress:
    if entry.state == "completed":
        return CallProgress.COMPLETE
    return CallProgress.UNKNOWN if entry.retired else CallProgress.UNFINISHED


def _count_unrecorded(entries: Sequence[_Entry]) -> int:
    """Return the number of operations that were counted and not recorded."""
    last: dict[tuple[str, str], int] = {}
    gaps = 0
    for entry in entries:
        gaps += max(entry.op_id - last.get(entry.process_group, entry.op_id) - 1, 0)
        last[entry.process_group] = entry.op_id
    return gaps


def _own_rank(entries: Sequence[_Entry], names: Mapping[str, int]) -> tuple[int, int] | None:
    for entry in entries:
        found = _MESSAGE.match(entry.profiling_name)
        if found is not None:
            return names[group_label(*entry.process_group)], int(found[2][:9])
    return None
