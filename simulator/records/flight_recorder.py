"""torch's flight recorder: dumps of versions 2.x, as pickle or JSON, of NCCL, gloo and backends like them.

A dump says what each call was, to which group, with which sizes and dtypes, and how far it had come; not its reduction
and not its root. gloo's says nothing of the members of a group, records no message between two ranks, and calls what
has timed out "retired", as it does what is complete. What the entries are is told in `entries.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec

from ddpsim.simulator.records.entries import EntriesReader, ReadEntries, label
from ddpsim.simulator.records.rank_record import RankRecord, RecordError
from ddpsim.simulator.records.record_texts import plain, rank_in

_RANKS = re.compile(r"\[\s*(?:[0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)?\s*\]")
_MOST_MEMBERS = 2**20


class _Group(msgspec.Struct):
    name: str = ""
    desc: str = ""
    ranks: str | tuple[int, ...] = ()


class _Dump(msgspec.Struct):
    version: str
    entries: Any = ()
    pg_config: dict[str, _Group] = {}
    nccl_comm_state: Any = None


def is_dump(value: Any) -> bool:
    """True for what looks like a dump, of whatever version."""
    return isinstance(value, dict) and "version" in value and ("entries" in value or "pg_config" in value)


def read(value: Any, source: str, found_in: Callable[[Any], ReadEntries] | None = None) -> RankRecord:
    """The record in a dump, unpickled or parsed; `found_in` says what its entries come to.

    Raises RecordError for one that is damaged, or of another version.
    """
    is_known = _is_known_version(value)
    try:
        record = _record(_converted(value), source, found_in or EntriesReader().read)
    except RecordError as error:
        if is_known:
            raise
        version = value["version"]
        raise RecordError(f"a dump of version {version}, which is not known and not like 2.10: {error}") from error
    return record if is_known else replace(record, is_known=False)


def _converted(value: Any) -> _Dump:
    try:
        return msgspec.convert(value, _Dump)
    except (msgspec.ValidationError, RecursionError, ValueError, OverflowError) as error:
        raise RecordError(f"a flight recorder's dump that is damaged ({plain(str(error))})") from error


def without_half_an_entry(value: dict[str, Any]) -> dict[str, Any]:
    """A dump that was cut short without its last entry, if that lacks what others have."""
    entries = value.get("entries")
    if not isinstance(entries, list) or not entries:
        return value
    first, last = entries[0], entries[-1]
    is_whole = len(entries) > 1 and isinstance(first, dict) and isinstance(last, dict) and first.keys() == last.keys()
    return value if is_whole else {**value, "entries": entries[:-1]}


def _is_known_version(value: dict[str, Any]) -> bool:
    """Whether fields mean what they mean here: a later one that begins with 2 has more of them at most."""
    version = value.get("version")
    if not isinstance(version, str) or not re.fullmatch(r"\d{1,4}[.]\d{1,4}", version):
        raise RecordError(
            f"a flight recorder's dump of version {str(version)[:20]!r}, expected 2.0 or a later one that begins with 2"
        )
    return version.startswith("2.")


def _record(dump: _Dump, source: str, found_in: Callable[[Any], ReadEntries]) -> RankRecord:
    members = {label(group.name or name, group.desc): _ranks(group) for name, group in dump.pg_config.items()}
    members = {label: ranks for label, ranks in members.items() if ranks}
    found = found_in(dump.entries)
    rank = _rank_of_communicators(dump.nccl_comm_state, members)
    rank = _rank_of_messages(found, members) if rank is None else rank
    rank = rank_in(source) if rank is None else rank
    if rank is None:
        raise RecordError(
            "a flight recorder's dump that does not say its rank, and its name does not either: "
            'let the name end in the rank, as "rank_3" does'
        )
    return RankRecord(
        rank=rank,
        source=source,
        form=f"flight recorder {dump.version}",
        call_log=found.call_log,
        groups=found.groups,
        sites=found.sites,
        members=members,
        lost=found.lost,
        not_recorded=found.gaps,
        is_in_one_group=_is_in_one_group(dump),
        lacks=("reduction", "root", "splits"),
    )


def _rank_of_messages(found: ReadEntries, members: Mapping[str, tuple[int, ...]]) -> int | None:
    """The rank that its sends and receives name as its own, as a global one; None without members to know that by."""
    if found.own is None:
        return None
    group, own = found.own
    known = members.get(found.groups[group], ())
    return (known[own] if own < len(known) else own) if known else None


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
