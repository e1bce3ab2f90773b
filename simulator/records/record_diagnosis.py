"""Diagnose the records of a job: return the findings that a simulated run of it would have.

Matching and wording are the simulator's own. Details that a record lacks are not compared, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock import deadlocks
from ddpsim.simulator.diagnosis.deadlock_snapshot import (
    OpenSlot,
    RankSnapshot,
    RankState,
    Snapshot,
    StreamSnapshot,
)
from ddpsim.simulator.diagnosis.explain import Row, table
from ddpsim.simulator.diagnosis.mismatch import mismatch, pair_mismatch
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.records.job import Job
from ddpsim.simulator.records.met_calls import ROOTED, Clash, MetCollectives, MetMessages, met_collectives, met_messages
from ddpsim.simulator.records.rank_record import CallProgress
from ddpsim.simulator.verdict import Code, Finding, Verdict, combine
from ddpsim.simulator.waits import CallWait, Waiting
from ddpsim.simulator.wording import Line, listed, rank_list

_MOST_STALLED = 8
"""How many of the calls that did not complete are listed."""
_MOST_ISSUED = 200_000
"""The most calls of a job for which reports count how often each rank reached a line."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of a job's records."""

    job: Job
    findings: tuple[Finding, ...]
    waiting: tuple[Waiting, ...]
    """Which rank waits for which."""
    open_calls: tuple[Call, ...]
    """Calls that did not match, or that were matched with different ones."""
    notes: tuple[str, ...]
    """What the records do not say, one sentence each."""
    compared: int
    """The number of matched collectives."""
    messages: int
    """The number of messages with a matched receive."""

    @property
    def verdict(self) -> Verdict:
        """Return the worst verdict: fail, then unknown, then pass."""
        return combine(self.findings)


def diagnose(job: Job) -> Diagnosis:
    """Return what went wrong in a job, according to its records."""
    return _Diagnosing(job).diagnosis()


class _Diagnosing:
    """Builds the findings for the records of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._met: MetCollectives = met_collectives(job)
        self._messages: MetMessages = met_messages(job)
        self._issued = _issued(job)

    def diagnosis(self) -> Diagnosis:
        graph = WaitGraph(self._snapshot())
        findings = self._mismatches() or deadlocks(graph)
        if not findings and self._met.stalled:
            graph, findings = self._in_order(graph)
        findings = tuple(map(self._judged, findings)) or tuple(self._unknown())
        slots = [call for slot in graph.snapshot.open_slots for call in slot.calls]
        named = [call for finding in findings for call in finding.calls]
        notes = tuple(self._notes())
        compared = self._met.count, self._messages.count
        return Diagnosis(self._job, findings, graph.waiting(), (*slots, *named), notes, *compared)

    # --- calls that do not agree --------------------------------------------------------------------------------------

    def _mismatches(self) -> tuple[Finding, ...]:
        """Return the first mismatch; later ones may only be its consequences."""
        collectives = [(self._place(clash.calls), self._mismatch(clash)) for clash in self._met.clashes]
        messages = [
            (self._place((send, receive)), pair_mismatch(send, receive, code, None))
            for send, receive, code in self._messages.clashes
        ]
        first = min((*collectives, *messages), key=lambda each: each[0], default=None)
        return () if first is None else (first[1],)

    def _mismatch(self, clash: Clash) -> Finding:
        return mismatch(clash.calls, clash.code, None, complete=clash.is_full, issued=self._issued)

    def _place(self, calls: Sequence[Call]) -> int:
        """For each of these calls, count the earlier calls of its rank; return the smallest count."""
        wanted = {call.rank: call for call in calls}
        places = []
        for rank, call in wanted.items():
            record = self._job.records[rank]
            places.append(record.lost + record.calls.index_of(call))
        return min(places)

    # --- ranks that wait ----------------------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        slots = [*self._met.open_slots, *self._messages.open_slots]
        if not slots:
            slots = [OpenSlot(calls, self._absent_from(calls)) for calls in self._met.without_record]
        first = self._first_open(slots)
        ranks = tuple(self._rank(rank, first.get(rank)) for rank in range(self._job.world_size))
        return Snapshot(ranks, tuple(slots), None, self._issued)

    @property
    def _absent(self) -> frozenset[int]:
        """Return the ranks that may have made more calls than their records show."""
        return frozenset((*self._job.unrecorded, *self._job.cut, *self._met.stale))

    def _absent_from(self, calls: Sequence[Call]) -> tuple[int, ...]:
        here = {call.rank for call in calls}
        return tuple(rank for rank in self._job.members[calls[0].group] if rank in self._absent - here)

    def _first_open(self, slots: Sequence[OpenSlot]) -> dict[int, Call]:
        """Return the call that each rank waits in: its first open call that it has not passed.

        A rank has passed an open call if a later one is open, the record does not say whether the first completed, and
        the rank can continue before other ranks reach it.
        """
        places: dict[int, set[int]] = {}
        for slot in slots:
            for call in slot.calls:
                places.setdefault(call.rank, set()).add(self._job.records[call.rank].calls.index_of(call))
        first: dict[int, Call] = {}
        for rank, indices in places.items():
            own = [self._job.records[rank].calls[index] for index in sorted(indices)]
            sure = [each for each in own if each.progress is CallProgress.UNFINISHED]
            likely = [each for each in own if each.call.operation not in ROOTED]
            first[rank] = (sure or likely or own)[0].call
        return first

    def _rank(self, rank: int, wait: Call | None) -> RankSnapshot:
        record = self._job.records.get(rank)
        if record is None:
            return RankSnapshot(rank, RankState.UNRECORDED)
        last = record.calls[-1].call if record.calls else None
        made = record.lost + len(record.calls)
        if wait is None:
            state = RankState.UNRECORDED if rank in self._absent else RankState.SILENT
            return RankSnapshot(rank, state, last_call=last, calls_made=made)
        return RankSnapshot(rank, RankState.WAITING, CallWait((wait,), wait.site), last, made)

    def _judged(self, finding: Finding) -> Finding:
        """Return the finding; if it only blames ranks without a complete record, downgrade it, as they may have made
        the call.
        """
        if finding.code is not Code.DEADLOCK_MISSING_RANK or not self._absent.issuperset(finding.ranks):
            return finding
        lines = (f"UNKNOWN  {Code.UNCHECKED}", *finding.lines[1:])
        return replace(finding, code=Code.UNCHECKED, ranks=(), lines=lines)

    def _last(self, rank: int) -> str:
        steps = self._job.records[rank].call_log.steps
        return f"{steps[-1].signature.operation} #{steps[-1].sequence}" if steps else "no call"

    # --- calls that all ranks reached
    # --------------------------------------------------------------------------------------

    def _in_order(self, graph: WaitGraph) -> tuple[WaitGraph, tuple[Finding, ...]]:
        """Interpret the records as those of a backend that runs the calls of a rank one after another, as NCCL may.

        All ranks reached all calls, but if ranks began with different ones, each waits for another.
        """
        streams = {rank: calls for rank in self._job.records if (calls := self._unfinished(rank))}
        heads = {rank: calls[0] for rank, calls in streams.items()}
        numbers = {(call.group, call.sequence) for call in heads.values()}
        slots = []
        for group, number in sorted(numbers):
            here = tuple(call for call in heads.values() if (call.group, call.sequence) == (group, number))
            ranks = {call.rank for call in here}
            missing = tuple(rank for rank in self._job.members[group] if rank in heads and rank not in ranks)
            if missing:
                slots.append(OpenSlot(here, missing))
        if not slots:
            return graph, ()
        snapshot = Snapshot(
            tuple(self._rank(rank, heads.get(rank)) for rank in range(self._job.world_size)),
            tuple(slots),
            None,
            self._issued,
            tuple(StreamSnapshot(rank, calls[:1], calls[1:]) for rank, calls in streams.items() if len(calls) > 1),
        )
        crossed = WaitGraph(snapshot)
        return crossed, tuple(each for each in deadlocks(crossed) if each.code is Code.DEADLOCK_CYCLE)

    def _unfinished(self, rank: int) -> tuple[Call, ...]:
        record = self._job.records[rank]
        return tuple(record.calls[index].call for index in record.call_log.unfinished)

    def _unknown(self) -> Iterator[Finding]:
        """Yield a finding if the records cannot show whether the job failed."""
        stalled = [*self._met.stalled, *self._messages.stalled]
        for calls in stalled[:_MOST_STALLED]:
            what = f'{calls[0].operation} #{calls[0].sequence} on "{calls[0].group}"'
            who = rank_list(call.rank for call in calls)
            rows = [Row(call.rank, str(call), call.location) for call in calls]
            cause = Cause.CAME_AND_HUNG.lines(who=who, operation=what)
            summary = f"{who} reached {what}, and it did not complete"
            yield _of_nobody(summary, [*table(rows), *cause])
        if not stalled and self._job.unrecorded:
            who = rank_list(self._job.unrecorded)
            summary = f"nothing is open, and there is no record of {who}"
            yield _of_nobody(summary, Cause.NOTHING_OPEN.lines(who=who))
        elif not stalled and self._knows_no_end():
            who = rank_list(self._job.records)
            yield _of_nobody(f"the calls of {who} agree, and may be complete", Cause.ENDS_UNKNOWN.lines(who=who))
        elif not stalled and self._strange:
            who = rank_list(self._strange)
            yield _of_nobody(f"the calls of {who} agree in the fields that are known", [])

    @property
    def _strange(self) -> tuple[int, ...]:
        """Return the ranks whose records have an unknown version."""
        return tuple(rank for rank, record in self._job.records.items() if not record.is_known)

    def _knows_no_end(self) -> bool:
        """Return True if the records show for no call whether it was complete."""
        return all(record.call_log.progress <= {CallProgress.UNKNOWN} for record in self._job.records.values())

    # --- what the records do not say ----------------------------------------------------------------------------------

    def _notes(self) -> Iterator[str]:
        """Yield a note for each limit of the records."""
        records = list(self._job.records.values())
        if self._job.unrecorded:
            yield f"no record of {rank_list(self._job.unrecorded)}"
        if self._job.cut:
            last = ", ".join(f"rank {rank} after {self._last(rank)}" for rank in self._job.cut[:_MOST_STALLED])
            yield f"the record of {rank_list(self._job.cut)} is cut short; the part before that was read: {last}"
        if self._strange:
            forms = ", ".join(dict.fromkeys(self._job.records[rank].form for rank in self._strange))
            yield f"{forms} is an unknown version, read like 2.10: new or changed fields are not compared"
        if self._met.stale:
            whose = rank_list(self._met.stale)
            yield f"the record of {whose} lacks calls that others completed with it: it was written earlier"
        lacks = list(dict.fromkeys(what for record in records for what in record.lacks))
        if lacks:
            yield f"not in the records, so not compared: {', '.join(lacks)}"
        for group, number in self._met.compared_from.items():
            yield f'group "{group}" is compared from call #{number}: earlier calls are not in all records'
        progress = {each for record in records for each in record.call_log.progress}
        if CallProgress.COMPLETE not in progress and CallProgress.UNKNOWN in progress:
            yield "the records do not say which calls were complete"
        if self._job.guessed:
            yield (
                f"no record has the members of group {listed([repr(name) for name in self._job.guessed], 4)}: assumed "
                "to be the ranks that called with it, so a missing rank is one that may also be a member"
            )
        skipped = {record.rank: record.not_recorded for record in records if record.not_recorded}
        if skipped:
            calls = sum(skipped.values())
            yield (
                f"{calls} call{'s' * (calls != 1)} of {rank_list(skipped)} {'are' if calls > 1 else 'is'} not in the "
                "records (gloo's have no send and no recv), and a rank may wait in one"
            )


def _of_nobody(summary: str, lines: Sequence[str | Line]) -> Finding:
    """Return the finding for a hang whose cause the records do not show."""
    return Finding(Code.UNCHECKED, (), summary, (f"UNKNOWN  {Code.UNCHECKED}", *lines))


def _issued(job: Job) -> tuple[Call, ...]:
    """Return all calls; () if rings have lost some, or if there are too many: then reports do not count calls."""
    records = job.records.values()
    if any(record.lost for record in records) or sum(len(each.call_log.steps) for each in records) > _MOST_ISSUED:
        return ()
    return tuple(each.call for record in records for each in record.calls)
