"""Where the collectives of records met: the first that do not agree, those that somebody did not come to, and those
that everybody came to and that did not complete.

The calls of a group meet by the numbers that the records give them. Where the ring of a rank has lost its beginning,
what came before its first call was complete, or it would not have gone on; so a group is compared from there on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.standstill import OpenSlot
from ddpsim.simulator.matching.agreement import disagreement
from ddpsim.simulator.operations import OPERATIONS
from ddpsim.simulator.records.job import Job
from ddpsim.simulator.records.record import Progress, RecordedCall
from ddpsim.simulator.verdict import Code

ROOTED = frozenset(row.name for row in OPERATIONS.values() if row.has_root)
"""Operations that may complete on one rank before another has come."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Calls that met and do not agree."""

    calls: tuple[Call, ...]
    code: Code
    is_full: bool
    """Every member of the group is among them."""


@dataclass(slots=True)
class Met:
    """What became of the collectives of a job."""

    clashes: list[Clash] = field(default_factory=list)
    """Of each group the first."""
    open_slots: list[OpenSlot] = field(default_factory=list)
    stalled: list[tuple[Call, ...]] = field(default_factory=list)
    """Everybody came, and they did not complete; by group, then in order."""
    without_record: list[tuple[Call, ...]] = field(default_factory=list)
    """As these, but that there is no record of some members."""
    compared_from: dict[str, int] = field(default_factory=dict)
    """The first number that was compared, of groups of which some ring has lost the beginning."""
    stale: set[int] = field(default_factory=set)
    """Ranks whose record lacks calls that others say are complete, so that it was written earlier."""
    count: int = 0
    """How many were compared."""


_ByNumber = dict[int, RecordedCall]


def met(job: Job) -> Met:
    """Compare the collectives of every group."""
    found = Met()
    for group, by_rank in _by_group(job).items():
        _Group(job, group, by_rank, found).compare()
    return found


def _by_group(job: Job) -> dict[str, dict[int, _ByNumber]]:
    """The collectives of each group and rank, by number. Numbers that begin anew are of a new group: the last one."""
    groups: dict[str, dict[int, _ByNumber]] = {}
    for rank, record in job.records.items():
        for recorded in record.calls:
            call = recorded.call
            if call.is_point_to_point:
                continue
            own = groups.setdefault(call.group, {}).setdefault(rank, {})
            if own and call.sequence <= next(reversed(own)):
                own.clear()
            own[call.sequence] = recorded
    return groups


class _Group:
    """The collectives of one group."""

    def __init__(self, job: Job, group: str, by_rank: Mapping[int, _ByNumber], found: Met) -> None:
        self._group = group
        self._by_rank = by_rank
        self._found = found
        members = job.members[group]
        is_guessed = group in job.guessed
        self._others = tuple(rank for rank in job.may_belong if is_guessed and rank not in members)
        """The ranks that may have been missing, in a group whose members no record says."""
        silent = [rank for rank in members if rank in job.records and rank not in by_rank]
        unknown = {rank for rank in silent if job.records[rank].lost}
        self._recorded = tuple(rank for rank in members if rank in job.records and rank not in unknown)
        self._stale: set[int] = set()
        """Ranks whose record was written before others went on."""
        self._without = tuple(rank for rank in members if rank not in job.records)

    def compare(self) -> None:
        """Go through the numbers until calls clash."""
        first = max(min(own) for own in self._by_rank.values())
        if first > 0:
            self._found.compared_from[self._group] = first
        is_after_open = False
        for number in range(first, max(max(own) for own in self._by_rank.values()) + 1):
            present = [own[number] for rank in self._recorded if (own := self._by_rank.get(rank, {})) and number in own]
            if not present:
                continue
            self._found.count += 1
            if self._clash([each.call for each in present]):
                return
            if any(rank not in self._stale for rank in self._recorded if number not in self._by_rank.get(rank, {})):
                self._miss(present)
            elif not is_after_open and all(each.progress is not Progress.COMPLETE for each in present):
                is_after_open = self._stall(present)

    def _clash(self, calls: Sequence[Call]) -> bool:
        code = disagreement(calls) if len(calls) > 1 else None
        is_full = len(calls) == len(self._recorded) + len(self._without)
        if code is None or (code is Code.MISMATCH_SPLITS and not is_full):
            return False
        self._found.clashes.append(Clash(tuple(calls), code, is_full))
        return True

    def _miss(self, present: Sequence[RecordedCall]) -> None:
        """Somebody of whom there is a record did not come. What a rank says is complete is open no more for it."""
        waiting = tuple(each.call for each in present if each.progress is not Progress.COMPLETE)
        is_rooted = present[0].call.operation in ROOTED
        here = {each.call.rank for each in present}
        missing = tuple(rank for rank in self._recorded if rank not in here and rank not in self._stale)
        if len(waiting) < len(present) and not is_rooted:
            self._stale.update(missing)
            self._found.stale.update(missing)
        elif waiting:
            self._found.open_slots.append(OpenSlot(waiting, missing))

    def _stall(self, present: Sequence[RecordedCall]) -> bool:
        """Everybody came, and nobody says that it is complete; of the calls of a group the first such counts."""
        if not any(each.progress is Progress.UNFINISHED for each in present):
            return False
        calls = tuple(each.call for each in present)
        if self._others:
            self._found.open_slots.append(OpenSlot(calls, self._others, any_suffices=len(self._others) > 1))
            return True
        (self._found.without_record if self._without else self._found.stalled).append(calls)
        return True
