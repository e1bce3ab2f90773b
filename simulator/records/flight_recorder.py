"""Read dumps of torch's flight recorder, versions 2.x, as pickle or JSON, of NCCL, gloo and similar backends.

A dump describes each call: its operation, group, sizes, dtypes and progress, but not its reduction or root. gloo's dump
lacks the members of groups and all messages between two ranks. It also calls both completed and timed-out calls
"retired". `entries.py` reads the entries.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec

from ddpsim.simulator.records.entries import EntriesReader, ReadEntries, convert_damaged_safely, group_label
from ddpsim.simulator.records.rank_record import RankRecord, RecordError
from ddpsim.simulator.records.record_texts import rank_in_path

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
    """Return True if the value looks like a flight recorder dump, of any version."""
    return isinstance(value, dict) and "version" in value and ("entries" in value or "pg_config" in value)


def read_dump(value: Any, source: str, found_in: Callable[[Any], ReadEntries] | None = None) -> RankRecord:
    """Return the record in a flight recorder dump, given as a plain value. `found_in` parses its entries.

    Raises RecordError for a damaged dump or an unknown version.
    """
    is_known = _is_known_version(value)
    try:
        record = _make_record(convert_damaged_safely(value, _Dump), source, found_in or EntriesReader().read_entries)
    except RecordError as error:
        if is_known:
            raise
        version = value["version"]
        raise RecordError(f"a dump of the unknown version {version}, which differs from 2.10: {error}") from error
    return record if is_known else replace(record, is_known=False)


def without_incomplete_entry(value: dict[str, Any]) -> dict[str, Any]:
    """Return a dump whose file is cut off, without its last entry if that entry is incomplete."""
    entries = value.get("entries")
    if not isinstance(entries, list) or not entries:
        return value
    first, last = entries[0], entries[-1]
    is_whole = len(entries) > 1 and isinstance(first, dict) and isinstance(last, dict) and first.keys() == last.keys()
    return value if is_whole else {**value, "entries": entries[:-1]}


def _is_known_version(value: dict[str, Any]) -> bool:
    """Return whether a dump's version is known, so its fields are understood: versions 2.x may only add fields."""
    version = value.get("version")
    if not isinstance(version, str) or not re.fullmatch(r"\d{1,4}[.]\d{1,4}", version):
        raise RecordError(
            f"a flight recorder's dump of version {str(version)[:20]!r}, expected 2.0 or a later one that begins with 2"
        )
    return version.startswith("2.")


def _make_record(dump: _Dump, source: str, found_in: Callable[[Any], ReadEntries]) -> RankRecord:
    """Return the record in a dump whose version is known or similar."""
    config = dump.pg_config.items()
    members = {group_label(group.name or name, group.desc): _member_ranks(group) for name, group in config}
    members = {label: ranks for label, ranks in members.items() if ranks}
    found = found_in(dump.entries)
    rank = _rank_of_communicators(dump.nccl_comm_state, members)
    rank = _rank_of_messages(found, members) if rank is None else rank
    rank = rank_in_path(source) if rank is None else rank
    if rank is None:
        raise RecordError(
            "neither the flight recorder's dump nor its file name says its rank: "
            'rename the file to end in the rank, such as "rank_3"'
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
    """Return the global rank that sent and received the dump's messages; None if a group's members are unknown."""
    if found.own is None:
        return None
    group, own = found.own
    known = members.get(found.groups[group], ())
    return (known[own] if own < len(known) else own) if known else None


def _member_ranks(group: _Group) -> tuple[int, ...]:
    """Return a group's members in a dump: a list, or a list written as text."""
    ranks = _parse_members(group.ranks) if isinstance(group.ranks, str) else group.ranks
    if any(rank < 0 for rank in ranks):
        raise RecordError(f"a flight recorder's dump with a rank below 0 among the members of a group, {min(ranks)}")
    return ranks


@lru_cache(maxsize=256)
def _parse_members(text: str) -> tuple[int, ...]:
    if not _RANKS.fullmatch(text) or text.count(",") > _MOST_MEMBERS:
        raise RecordError(f"a flight recorder's dump with members {text[:40]!r}, expected a list of ranks")
    return tuple(int(rank) for rank in text.strip("[] ").split(",") if rank)


def _rank_of_communicators(state: Any, members: dict[str, tuple[int, ...]]) -> int | None:
    """Return this rank's number in NCCL's communicator of all ranks; None if there is no such communicator."""
    size = len(members.get("default", ()))
    for communicator in state.values() if isinstance(state, dict) else ():
        if isinstance(communicator, dict) and size and str(communicator.get("nranks")) == str(size):
            rank = str(communicator.get("rank"))
            if rank.isascii() and rank.isdigit() and int(rank[:9]) < size:
                return int(rank)
    return None


def _is_in_one_group(dump: _Dump) -> bool:
    """Return True for a gloo dump: each new group of a rank replaces the group before; only the first has members."""
    own = dump.pg_config.get("")
    return own is not None and len(dump.pg_config) == 1 and len(_member_ranks(own)) > 0
