"""Diagnoses the records of a job: returns the findings that a simulated run of the job would have.

Calls are matched and findings worded as in a simulated run. What a record lacks is not compared, and a note says so.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock import find_deadlocks
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenCalls, RankSnapshot, RankState, Snapshot, StreamSnapshot
from ddpsim.simulator.diagnosis.explain import finding_lines, format_call_table
from ddpsim.simulator.diagnosis.mismatch import message_mismatch_finding, mismatch_finding
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.records.job import RecordedJob
from ddpsim.simulator.records.met_calls import ROOTED, match_collectives, match_messages
from ddpsim.simulator.records.rank_record import CallProgress
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.verdict import Code, Finding, Verdict, worst_verdict_of_findings
from ddpsim.simulator.waits import CallWait, Waiting
from ddpsim.simulator.wording import LabelledLine, join_names, rank_list, values_by_key

_MOST_STALLED = 8
"""The most calls without completion that a finding lists."""
_MOST_CALLS = 100_000
"""The most calls of a job that `make_trace` puts into a trace."""
_LEAST_OF_RANK = 50
_MOST_ISSUED = 200_000
"""The most calls of a job for which reports count how often each rank reached a line."""


@dataclass(frozen=True, slots=True)
class JobDiagnosis:
    """The diagnosis of a job's records."""

    job: RecordedJob
    findings: tuple[Finding, ...]
    waiting: tuple[Waiting, ...]
    open_calls: tuple[Call, ...]
    """Calls that no call matched, or that were matched with calls with other arguments."""
    notes: tuple[str, ...]
    """Sentences on what the records do not say."""
    compared: int
    messages: int
    """The number of messages that were compared with their receives."""

    @property
    def verdict(self) -> Verdict:
        """Return the worst verdict: fail, then unknown, then pass."""
        return worst_verdict_of_findings(self.findings)


def diagnose_job(job: RecordedJob) -> JobDiagnosis:
    """Return what went wrong in a job, according to its records."""
    return _JobDiagnoser(job).make_diagnosis()


class _JobDiagnoser:
    def __init__(self, job: RecordedJob) -> None:
        self._job = job
        self._met = match_collectives(job)
        self._messages = match_messages(job)
        self._issued = _issued_calls(job)

    def make_diagnosis(self) -> JobDiagnosis:
        graph = WaitGraph(self._make_snapshot())
        findings = self._first_mismatch() or find_deadlocks(graph)
        if not findings and self._met.stalled:
            graph, findings = self._diagnose_as_streams(graph)
        findings = tuple(map(self._downgrade_if_unsure, findings)) or tuple(self._unknown_findings())
        slots = [call for slot in graph.snapshot.open_slots for call in slot.calls]
        named = [call for finding in findings for call in finding.calls]
        notes = tuple(self._notes())
        compared = self._met.count, self._messages.count
        return JobDiagnosis(self._job, findings, graph.list_waiting(), (*slots, *named), notes, *compared)

    # --- calls that do not agree --------------------------------------------------------------------------------------

    def _first_mismatch(self) -> tuple[Finding, ...]:
        """Return the first mismatch of the job; later mismatches may only be its consequences."""
        collectives = [
            (self._earliest_index(calls), mismatch_finding(calls, code, None, complete=is_full, issued=self._issued))
            for calls, code, is_full in self._met.clashes
        ]
        messages = [
            (self._earliest_index((send, receive)), message_mismatch_finding(send, receive, code, None))
            for send, receive, code in self._messages.clashes
        ]
        first = min((*collectives, *messages), key=lambda each: each[0], default=None)
        return () if first is None else (first[1],)

    def _earliest_index(self, calls: Sequence[Call]) -> int:
        """Return how early the earliest of these calls is: the number of earlier calls of the call's rank."""
        records = [self._job.records[call.rank] for call in calls]
        return min(each.lost + each.calls.index_of(call) for each, call in zip(records, calls, strict=True))

    # --- ranks that wait ----------------------------------------------------------------------------------------------

    def _make_snapshot(self) -> Snapshot:
        slots = [*self._met.open_slots, *self._messages.open_slots]
        if not slots:
            slots = [OpenCalls(calls, self._ranks_missing_in(calls)) for calls in self._met.without_record]
        first = self._first_open_calls(slots)
        ranks = tuple(self._snapshot_of_rank(rank, first.get(rank)) for rank in range(self._job.world_size))
        return Snapshot(ranks, tuple(slots), None, self._issued)

    @property
    def _ranks_with_missing_calls(self) -> frozenset[int]:
        """Return the ranks whose records may lack calls that the ranks made."""
        return frozenset((*self._job.ranks_without_record, *self._job.ranks_with_cut_record, *self._met.stale))

    def _ranks_missing_in(self, calls: Sequence[Call]) -> tuple[int, ...]:
        unsure = self._ranks_with_missing_calls - {call.rank for call in calls}
        return tuple(rank for rank in self._job.members[calls[0].group] if rank in unsure)

    def _first_open_calls(self, slots: Sequence[OpenCalls]) -> dict[int, Call]:
        """Return the call that each rank waits in: its first open call that the rank has not passed.

        A rank has passed an open call if a later one is open, the record does not say whether the first completed, and
        the rank can continue before other ranks reach it.
        """
        first: dict[int, Call] = {}
        for rank, waiting in values_by_key((call.rank, call) for slot in slots for call in slot.calls).items():
            calls = self._job.records[rank].calls
            own = [calls[index] for index in sorted({calls.index_of(call) for call in waiting})]
            sure = [each for each in own if each.progress is CallProgress.UNFINISHED]
            likely = [each for each in own if each.call.operation not in ROOTED]
            first[rank] = (sure or likely or own)[0].call
        return first

    def _snapshot_of_rank(self, rank: int, wait: Call | None) -> RankSnapshot:
        record = self._job.records.get(rank)
        if record is None:
            return RankSnapshot(rank, RankState.UNRECORDED)
        last = record.calls[-1].call if len(record.calls) else None
        if wait is None:
            state = RankState.UNRECORDED if rank in self._ranks_with_missing_calls else RankState.SILENT
            return RankSnapshot(rank, state, last_call=last)
        return RankSnapshot(rank, RankState.WAITING, CallWait((wait,), wait.site), last)

    def _downgrade_if_unsure(self, finding: Finding) -> Finding:
        """Return the finding; an uncertain finding if it only blames ranks whose record may lack the missing call."""
        is_sure = not self._ranks_with_missing_calls.issuperset(finding.ranks)
        if finding.code is not Code.DEADLOCK_MISSING_RANK or is_sure:
            return finding
        return replace(finding, code=Code.UNCHECKED, ranks=(), lines=finding_lines(Code.UNCHECKED, finding.lines[1:]))

    def _last_call_text(self, rank: int) -> str:
        steps = self._job.records[rank].call_log.steps
        return f"{steps[-1].signature.operation} #{steps[-1].sequence}" if steps else "no call"

    # --- calls that all ranks reached ---------------------------------------------------------------------------------

    def _diagnose_as_streams(self, graph: WaitGraph) -> tuple[WaitGraph, tuple[Finding, ...]]:
        """Interpret the records as those of a backend that runs the calls of a rank one after another, as NCCL may.
        Return the wait-for graph and its findings: ranks that began with different calls wait for each other."""
        streams = {
            rank: tuple(record.calls[index].call for index in record.call_log.unfinished_indices)
            for rank, record in self._job.records.items()
            if record.call_log.unfinished_indices
        }
        heads = {rank: calls[0] for rank, calls in streams.items()}
        meeting = values_by_key(((call.group, call.sequence), call) for call in heads.values())
        slots = []
        for (group, _), here in sorted(meeting.items()):
            ranks = {call.rank for call in here}
            missing = tuple(rank for rank in self._job.members[group] if rank in heads and rank not in ranks)
            if missing:
                slots.append(OpenCalls(tuple(here), missing))
        if not slots:
            return graph, ()
        crossed = WaitGraph(
            replace(
                graph.snapshot,
                ranks=tuple(self._snapshot_of_rank(rank, heads.get(rank)) for rank in range(self._job.world_size)),
                open_slots=tuple(slots),
                streams=tuple(StreamSnapshot(rank, own[:1], own[1:]) for rank, own in streams.items() if len(own) > 1),
            )
        )
        return crossed, tuple(each for each in find_deadlocks(crossed) if each.code is Code.DEADLOCK_CYCLE)

    def _unknown_findings(self) -> Iterator[Finding]:
        """Yield a finding if the records cannot show whether the job failed."""
        records = self._job.records.values()
        stalled = [*self._met.stalled, *self._messages.stalled]
        for calls in stalled[:_MOST_STALLED]:
            what = f'{calls[0].title} on "{calls[0].group}"'
            who = rank_list(call.rank for call in calls)
            cause = Cause.CAME_AND_HUNG.lines(who=who, operation=what)
            lines: list[str | LabelledLine] = [*format_call_table(calls), *cause]
            yield _unknown_finding(f"{who} reached {what}, and it did not complete", lines)
        if not stalled and self._job.ranks_without_record:
            who = rank_list(self._job.ranks_without_record)
            summary = f"nothing is open, and there is no record of {who}"
            yield _unknown_finding(summary, Cause.NOTHING_OPEN.lines(who=who))
        elif not stalled and all(each.call_log.progress_values <= {CallProgress.UNKNOWN} for each in records):
            who = rank_list(self._job.records)
            yield _unknown_finding(f"the calls of {who} agree, and may be complete", Cause.ENDS_UNKNOWN.lines(who=who))
        elif not stalled and self._ranks_of_unknown_version:
            who = rank_list(self._ranks_of_unknown_version)
            yield _unknown_finding(f"the calls of {who} agree in the fields that are known", [])

    @property
    def _ranks_of_unknown_version(self) -> tuple[int, ...]:
        return tuple(rank for rank, record in self._job.records.items() if not record.is_known)

    # --- what the records do not say ----------------------------------------------------------------------------------

    def _notes(self) -> Iterator[str]:
        """Yield a sentence for each limit of the records."""
        records = list(self._job.records.values())
        if self._job.ranks_without_record:
            yield f"no record of {rank_list(self._job.ranks_without_record)}"
        if cut := self._job.ranks_with_cut_record:
            last = ", ".join(f"rank {rank} after {self._last_call_text(rank)}" for rank in cut[:_MOST_STALLED])
            yield f"the record of {rank_list(cut)} is cut short; the part before that was read: {last}"
        if self._ranks_of_unknown_version:
            forms = ", ".join(dict.fromkeys(self._job.records[rank].form for rank in self._ranks_of_unknown_version))
            yield f"{forms} is an unknown version, read like 2.10: new or changed fields are not compared"
        if self._met.stale:
            whose = rank_list(self._met.stale)
            yield f"the record of {whose} lacks calls that others completed with it: it was written earlier"
        lacks = list(dict.fromkeys(what for record in records for what in record.lacks))
        if lacks:
            yield f"not in the records, so not compared: {', '.join(lacks)}"
        for group, number in self._met.compared_from.items():
            yield f'group "{group}" is compared from call #{number}: earlier calls are not in all records'
        progress = {each for record in records for each in record.call_log.progress_values}
        if CallProgress.COMPLETE not in progress and CallProgress.UNKNOWN in progress:
            yield "the records do not say which calls were complete"
        if self._job.guessed:
            yield (
                f"no record has the members of group {join_names(list(map(repr, self._job.guessed)), 4)}: assumed "
                "to be the ranks that called with it, so a missing rank is one that may also be a member"
            )
        skipped = {record.rank: record.not_recorded for record in records if record.not_recorded}
        if skipped:
            calls = sum(skipped.values())
            yield (
                f"{calls} call{'s' * (calls != 1)} of {rank_list(skipped)} {'are' if calls > 1 else 'is'} not in the "
                "records (gloo's have no send and no recv), and a rank may wait in one"
            )


def _unknown_finding(summary: str, lines: Sequence[str | LabelledLine]) -> Finding:
    """Return the finding for a job that hangs for a reason that the records do not show."""
    return Finding(Code.UNCHECKED, (), summary, finding_lines(Code.UNCHECKED, lines))


def _issued_calls(job: RecordedJob) -> tuple[Call, ...]:
    """Return all calls of the job; () if records lost some or there are too many: then reports do not count calls."""
    records = job.records.values()
    if any(record.lost for record in records) or sum(len(each.call_log.steps) for each in records) > _MOST_ISSUED:
        return ()
    return tuple(each.call for record in records for each in record.calls)


# --- one order in which the calls can have happened, without comparing clocks ----------------------------------------


def make_trace(diagnosis: JobDiagnosis) -> Trace:
    """Return a trace of the last calls of each rank, and of the waiting ranks.

    A rank continues once its earlier calls have matched. Calls that are not waited for may make all ranks wait in this
    model; then each rank makes one more call.
    """
    records = diagnosis.job.records
    kept = max(_LEAST_OF_RANK, _MOST_CALLS // max(len(records), 1))  # the failure is at the end
    calls = {rank: [each.call for each in record.calls.last_calls(kept)] for rank, record in records.items()}
    events = list(_events_in_possible_order(calls, {id(call) for call in diagnosis.open_calls}))
    for each in diagnosis.waiting:
        if isinstance(each.wait, CallWait):
            events.append(Event(EventKind.WAIT, each.who.rank, len(events), 0.0, each.wait.calls[0]))
    return Trace(tuple(events))


def _events_in_possible_order(calls: Mapping[int, Sequence[Call]], open_calls: Set[int]) -> Iterator[Event]:
    """Yield the events of the calls in an order in which they can have happened."""
    keys = {rank: _matching_keys(own) for rank, own in calls.items()}
    left = Counter(key for own in keys.values() for key in own)
    pairs = (pair for rank, own in keys.items() for pair in zip(calls[rank], own, strict=True))
    never_match = {key for call, key in pairs if id(call) in open_calls}
    place = dict.fromkeys(calls, 0)
    step = 0
    moves = [rank for rank in calls if calls[rank]]
    while moves:
        for rank in moves:
            call, key = calls[rank][place[rank]], keys[rank][place[rank]]
            place[rank] += 1
            left[key] -= 1
            yield Event(EventKind.ISSUE, rank, step, 0.0, call)
            if not left[key] and key not in never_match:
                yield Event(EventKind.MATCH, rank, step, 0.0, call)
            step += 1
        ranks = [rank for rank in calls if place[rank] < len(calls[rank])]
        moves = [rank for rank in ranks if not place[rank] or not left[keys[rank][place[rank] - 1]]] or ranks


def _matching_keys(calls: Sequence[Call]) -> list[tuple[str, int, int, int]]:
    """Return a key for each call, equal for matching calls: group and number, and for messages both ranks."""
    numbers: Counter[tuple[str, int, int]] = Counter()
    keys = []
    for call in calls:
        if not call.is_point_to_point or call.peer is None:
            keys.append((call.group, call.sequence, -1, -1))
            continue
        ends = (call.rank, call.peer) if call.operation == "send" else (call.peer, call.rank)
        channel = (call.group, *ends)
        keys.append((*channel, numbers[channel]))
        numbers[channel] += 1
    return keys
