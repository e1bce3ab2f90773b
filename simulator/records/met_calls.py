"""Match recorded collectives and messages: find the first mismatch, the calls that some rank did not reach, and those
that all ranks reached and that did not complete.

The calls of a group are matched by their numbers in the records. If a rank's ring buffer lost its first calls, they
were complete, or the rank would not have continued; so a group is compared from there. Ranks with equal calls are
compared once. They are examined one by one only where calls differ or are open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenCalls, open_message
from ddpsim.simulator.matching.agreement import first_differing_field, message_differing_field
from ddpsim.simulator.operations import OPERATIONS
from ddpsim.simulator.records.job import RecordedJob
from ddpsim.simulator.records.rank_record import CallProgress, GroupCollectives, LoggedCall, RankRecord, RecordedCall
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.wording import ranks_by_value

ROOTED = frozenset(row.name for row in OPERATIONS.values() if row.has_root)
"""Operations that may complete on one rank before another reaches them."""


class CollectiveMismatch(NamedTuple):
    """Matched calls whose arguments differ."""

    calls: tuple[Call, ...]
    code: Code
    is_full: bool
    """True if every member of the group has made its call."""


@dataclass(slots=True)
class CollectiveMatches:
    """What a comparison of a job's collectives found."""

    clashes: list[CollectiveMismatch] = field(default_factory=list)
    """For each group, its first matched calls whose arguments differ."""
    open_slots: list[OpenCalls] = field(default_factory=list)
    stalled: list[tuple[Call, ...]] = field(default_factory=list)
    """Collectives that all members reached and that did not complete; sorted by group, then in order."""
    without_record: list[tuple[Call, ...]] = field(default_factory=list)
    """Collectives that did not complete, of which some members have no record, or none that goes so far."""
    compared_from: dict[str, int] = field(default_factory=dict)
    """For groups whose first calls were lost from a rank's ring buffer: the first number that was compared."""
    stale: set[int] = field(default_factory=set)
    """Ranks whose record was written early: it lacks calls that other records show as complete."""
    count: int = 0


def match_collectives(job: RecordedJob) -> CollectiveMatches:
    """Return what a comparison of the collectives of every group finds."""
    found = CollectiveMatches()
    for group, lanes in _calls_by_group(job).items():
        _GroupComparison(job, group, lanes, found).compare_calls()
    return found


class _GroupCallsOfRank(NamedTuple):
    record: RankRecord
    lane: GroupCollectives


def _calls_by_group(job: RecordedJob) -> dict[str, dict[int, _GroupCallsOfRank]]:
    groups: dict[str, dict[int, _GroupCallsOfRank]] = {}
    for rank, record in job.records.items():
        for number, lane in record.call_log.collectives_by_group.items():
            groups.setdefault(record.groups[number], {})[rank] = _GroupCallsOfRank(record, lane)
    return groups


class _EqualRanks(NamedTuple):
    """Ranks with equal calls in a group, and the calls of one of these ranks."""

    steps: Sequence[LoggedCall]
    lane: GroupCollectives
    ranks: tuple[int, ...]


class _GroupComparison:
    def __init__(
        self, job: RecordedJob, group: str, by_rank: Mapping[int, _GroupCallsOfRank], found: CollectiveMatches
    ) -> None:
        """Sort the group's members: with a record, without a record, and with a record that may lack calls."""
        self._group = group
        self._by_rank = by_rank
        self._found = found
        members = job.members[group]
        self._others = tuple(rank for rank in job.may_belong if group in job.guessed and rank not in members)
        """In a group without recorded members: the ranks that may be members and made no call."""
        silent = [rank for rank in members if rank in job.records and rank not in by_rank]
        unknown = {rank for rank in silent if job.records[rank].lost}
        self._recorded = tuple(rank for rank in members if rank in job.records and rank not in unknown)
        self._alike = _group_equal_ranks({rank: by_rank[rank] for rank in self._recorded if rank in by_rank})
        self._silent = frozenset(silent) - unknown
        self._stale = {rank for rank in self._recorded if job.records[rank].is_cut}
        """Ranks whose record was written earlier than others, or is cut off: they may have made more calls."""
        self._without = tuple(rank for rank in members if rank not in job.records)

    def compare_calls(self) -> None:
        """Compare the calls of each number in order, until matched calls differ."""
        first = max(own.lane.first for own in self._by_rank.values())
        if first > 0:
            self._found.compared_from[self._group] = first
        is_after_open = False
        for number in range(first, max(own.lane.last for own in self._by_rank.values()) + 1):
            steps = [each.steps[each.lane.places[number]] for each in self._alike if number in each.lane.places]
            if not steps:
                continue
            self._found.count += 1
            if self._record_mismatch(steps, number):
                return
            if self._is_call_missing(number):
                self._record_missing(number)
            elif not is_after_open and all(step.progress is not CallProgress.COMPLETE for step in steps):
                is_after_open = self._record_stall(steps, number)

    def _is_call_missing(self, number: int) -> bool:
        """Return True if a rank has a record without the call, which was not written too early to have it."""
        if self._silent - self._stale:
            return True
        return any(number not in each.lane.places and not self._stale.issuperset(each.ranks) for each in self._alike)

    def _calls_with_number(self, number: int) -> list[RecordedCall]:
        """Return all ranks' calls with this number, in the order of the group's ranks."""
        here = (self._by_rank[rank] for rank in self._recorded if rank in self._by_rank)
        return [own.record.calls[own.lane.places[number]] for own in here if number in own.lane.places]

    def _record_mismatch(self, steps: Sequence[LoggedCall], number: int) -> bool:
        one = steps[0].signature
        if one.splits is None and all(step.signature is one or step.signature == one for step in steps):
            return False
        calls = [each.call for each in self._calls_with_number(number)]
        code = first_differing_field(calls) if len(calls) > 1 else None
        is_full = len(calls) == len(self._recorded) + len(self._without)
        if code is None or (code is Code.MISMATCH_SPLITS and not is_full):
            return False
        self._found.clashes.append(CollectiveMismatch(tuple(calls), code, is_full))
        return True

    def _record_missing(self, number: int) -> None:
        """Record a call that a rank with a record did not reach. It is not open where it completed."""
        present = self._calls_with_number(number)
        waiting = tuple(each.call for each in present if each.progress is not CallProgress.COMPLETE)
        is_rooted = present[0].call.operation in ROOTED
        here = {each.call.rank for each in present}
        missing = tuple(rank for rank in self._recorded if rank not in here and rank not in self._stale)
        if len(waiting) < len(present) and not is_rooted:
            self._stale.update(missing)
            self._found.stale.update(missing)
        elif waiting:
            self._found.open_slots.append(OpenCalls(waiting, missing))

    def _record_stall(self, steps: Sequence[LoggedCall], number: int) -> bool:
        """Record a call that all members reached and no record shows as complete: the first for each group."""
        if not any(step.progress is CallProgress.UNFINISHED for step in steps):
            return False
        calls = tuple(each.call for each in self._calls_with_number(number))
        if self._others:
            self._found.open_slots.append(OpenCalls(calls, self._others, any_suffices=len(self._others) > 1))
            return True
        is_whole = not self._without and self._stale.issubset(call.rank for call in calls)
        (self._found.stalled if is_whole else self._found.without_record).append(calls)
        return True


def _group_equal_ranks(by_rank: Mapping[int, _GroupCallsOfRank]) -> tuple[_EqualRanks, ...]:
    """Return sets of ranks that share a call log and have the same number for the group in it."""
    ranks = ranks_by_value((rank, id(own.lane)) for rank, own in by_rank.items())
    lanes = {id(own.lane): own for own in by_rank.values()}
    return tuple(_EqualRanks(own.record.call_log.steps, own.lane, tuple(ranks[key])) for key, own in lanes.items())


@dataclass(slots=True)
class MessageMatches:
    """What a comparison of a job's messages found."""

    clashes: list[tuple[Call, Call, Code]] = field(default_factory=list)
    """Sends and their receives whose arguments differ; only the first for two ranks of a group."""
    open_slots: list[OpenCalls] = field(default_factory=list)
    stalled: list[tuple[Call, ...]] = field(default_factory=list)
    """Messages that were matched and did not complete; only the first for two ranks of a group."""
    count: int = 0


def match_messages(job: RecordedJob) -> MessageMatches:
    """Match sends with receives between any two ranks of a group; return what differs or did not complete."""
    found = MessageMatches()
    channels: dict[tuple[str, int, int], tuple[list[RecordedCall], list[RecordedCall]]] = {}
    for record in job.records.values():
        for index in record.call_log.message_indices:
            recorded = record.calls[index]
            call = recorded.call
            assert call.peer is not None
            if call.peer == ANY_SOURCE:  # no record says which message it took
                if recorded.progress is CallProgress.UNFINISHED:
                    found.open_slots.append(open_message(call, job.members[call.group]))
            elif call.operation == "send":
                channels.setdefault((call.group, call.rank, call.peer), ([], []))[0].append(recorded)
            else:
                channels.setdefault((call.group, call.peer, call.rank), ([], []))[1].append(recorded)
    for (_, *ends), (sends, receives) in channels.items():
        if any(rank not in job.records or job.records[rank].lost for rank in ends):
            # The number of earlier messages is unknown.
            sends, receives = _incomplete_calls(sends), _incomplete_calls(receives)
        _pair_messages(sends, receives, found)
    return found


def _pair_messages(sends: Sequence[RecordedCall], receives: Sequence[RecordedCall], found: MessageMatches) -> None:
    """Match the sends from one rank to another with the receives on the other rank, in order."""
    for send, receive in zip(sends, receives, strict=False):
        found.count += 1
        code = message_differing_field(send.call, receive.call)
        if code is not None:
            found.clashes.append((send.call, receive.call, code))
            return
    met = zip(_incomplete_calls(sends), _incomplete_calls(receives), strict=False)
    stalled = [pair for pair in met if CallProgress.UNFINISHED in (pair[0].progress, pair[1].progress)]
    found.stalled += [(send.call, receive.call) for send, receive in stalled[:1]]
    paired = min(len(sends), len(receives))
    for recorded in (*_incomplete_calls(sends[paired:]), *_incomplete_calls(receives[paired:])):
        found.open_slots.append(open_message(recorded.call, ()))


def _incomplete_calls(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    return [each for each in calls if each.progress is not CallProgress.COMPLETE]
