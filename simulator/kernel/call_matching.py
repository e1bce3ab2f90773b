"""Begins, issues, matches and completes the communication calls of ranks. How a rank waits for calls: pauses.py."""

from collections import Counter, deque
from collections.abc import Sequence

from ddpsim.simulator.accesses import Access, AccessMode
from ddpsim.simulator.calls import ANY_SOURCE, FROM_RANK, Call, Signature, Site
from ddpsim.simulator.choices import ChoiceKind
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.diagnosis.mismatch import message_mismatch_finding, mismatch_finding
from ddpsim.simulator.diagnosis.uneven import add_batch_counts
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.faults import Delay, FaultPlan
from ddpsim.simulator.kernel.answers import CallFailure, FailCalls, MoveTensors, RaiseFault
from ddpsim.simulator.kernel.endings import CallerStopped, end_with_findings
from ddpsim.simulator.kernel.pauses import PauseRequests
from ddpsim.simulator.kernel.requests import AnnounceGroup, AskMissingRanks, BeginCall, CloseBatch, IssueCall, OpenBatch
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.scheduler import Scheduler
from ddpsim.simulator.kernel.states import RunEnding, TaskChange
from ddpsim.simulator.kernel.tasks import IssuedCall, Script, Task
from ddpsim.simulator.kernel.time_outs import DueWaits
from ddpsim.simulator.matching.agreement import (
    are_unusual_lines_matched,
    first_differing_field,
    message_differing_field,
    mismatch_errors,
)
from ddpsim.simulator.matching.slots import PendingCollective, call_object, channel_object, order_object
from ddpsim.simulator.operations import CREATING
from ddpsim.simulator.waits import CallWait, LockWait, futures_object

_ISSUE, _MATCH = EventKind.ISSUE, EventKind.MATCH  # faster to look up, see scheduler.py
_new = tuple.__new__


class CallMatcher:
    """All communication calls of one run: matches each call with the calls of other ranks."""

    def __init__(self, run: RunState, turns: Scheduler, pauses: PauseRequests, faults: FaultPlan) -> None:
        self._run = run
        self._turns = turns
        self._pauses = pauses
        self._faults = faults
        self._has_faults = bool(faults)
        self._streams = run.streams
        turns.expire, turns.fail_calls = self._expire_waits, self._fail_calls
        self._starting: deque[IssuedCall] = deque()
        """Calls that are first in their rank's stream (queue of calls) and not counted yet as arrived."""
        self._issued: dict[int, IssuedCall] = {}
        # by id() of the call: hashing a call's many fields would cost more than the rest of its matching
        self._lines_met: set[frozenset[Site]] = set()
        """Sets of program lines. Ranks called one collective from these different lines; this has been reported."""

    def on_begin_call(self, me: Task, request: BeginCall) -> Script | None:
        """Answer a rank's `BeginCall` request: a choice point before a call, where injected faults strike."""
        successor = self._turns.yield_point(me, request.intent)
        if successor is None and me.fault is None and not self._has_faults:
            me.rank.calls_made += 1
            return None
        return self._begin_call(me, successor)

    def _begin_call(self, me: Task, successor: int | None) -> Script:
        if successor is not None:
            yield from self._pauses.wait_for_turn(me, successor)
        if me.fault is not None:  # a crashed rank stays crashed, even if its program catches the exception
            raise CallerStopped(RaiseFault(*me.fault))
        rank = me.rank
        number = rank.calls_made
        rank.calls_made += 1  # before the faults: another thread of the rank may make calls, too
        if self._has_faults:
            yield from self._inject_faults(me, number)

    def _inject_faults(self, me: Task, number: int) -> Script:
        for fault in self._faults.faults_before(me.rank.rank, number):
            self._run.record_event(EventKind.FAULT, text=type(fault).__name__)
            if isinstance(fault, Delay):
                yield from self._pauses.sleep_task(me, fault.seconds)
            else:
                me.fault = fault, number
                raise CallerStopped(RaiseFault(fault, number))

    def on_issue_call(self, me: Task, request: IssueCall) -> Script | None:
        """Answer a rank's `IssueCall` request: record the call, and match it with the calls of other ranks."""
        run = self._run
        handle, call = request
        # As IssuedCall(...) makes it, in half the time.
        issued = _new(IssuedCall, (call, handle, me.rank, (me.rank_number, handle), run.clock.now + run.clock.outside))
        self._turns.note_progress()
        me.rank.last_call = call
        me.rank.open[handle] = self._issued[id(call)] = issued
        if run.is_observed:
            run.observer.accessed(me.number, Access(call_object(call), AccessMode.CONTRIBUTE))
            if me.rank.has_started_threads:
                run.observer.accessed(me.number, Access(order_object(call), AccessMode.WRITE))
            run.observer.issued_call(me.number, issued.name, call)  # last: it builds on these accesses
        run.record_event(_ISSUE, call)
        run.issued.append((call, me.number))
        origin = call.origin
        if origin.step is not None and origin.wrapper is not None:
            wrapper = call.group, origin.wrapper
            run.steps_of_wrappers[wrapper] = max(origin.step, run.steps_of_wrappers.get(wrapper, 0))
        if self._streams is not None and self._streams.holds_call(call):
            return self._start_queued_calls(me) if self._streams.queue_call(issued, self._starting) else None
        return self._start_call(me, call)

    def _start_queued_calls(self, me: Task) -> Script:
        """Start the calls that are first in their rank's stream (queue of calls). No recursion: there may be many."""
        while self._starting:
            script = self._start_call(me, self._starting.popleft().call)
            if script is not None:
                yield from script

    def _start_call(self, me: Task, call: Call) -> Script | None:
        """Count a call as arrived at its collective, or match a send with its receive."""
        if self._turns.time_outs.may_fail and (failure := self._turns.time_outs.failure_of_new_call(call)) is not None:
            return self._fail_call_and_its_partners(call, failure)
        if call.peer is not None:
            return self._post_message(me, call)
        slot = self._run.slots.add_call(call)
        return self._match_collective(me, slot) if slot.is_full else None

    def on_open_batch(self, me: Task, request: OpenBatch) -> None:
        """Answer a rank's `OpenBatch` request: the rank's next calls start together, as in batch_isend_irecv."""
        if self._streams is not None:
            self._streams.open_batch(me.rank_number)

    def on_close_batch(self, me: Task, request: CloseBatch) -> None:
        """Answer a rank's `CloseBatch` request: the rank's batch (calls that start together) is complete."""
        if self._streams is not None:
            self._streams.close_batch(me.rank_number)

    def on_announce_group(self, me: Task, request: AnnounceGroup) -> Script:
        """Answer a rank's `AnnounceGroup` request: a rank outside a new group states its view of the members."""
        slot = self._run.slots.add_call(request.call)
        if request.call.rank in slot.calls and slot.is_full:
            yield from self._match_collective(me, slot)

    def _match_collective(self, me: Task, slot: PendingCollective) -> Script:
        calls = [slot.calls[rank] for rank in slot.members]
        code = first_differing_field(calls)
        if code is not None:
            self._record_last_arrival(me, calls[0])
            run = self._run
            finding = mismatch_finding(calls, code, run.steps, issued=run.all_calls(), names=run.tensor_names())
            if not (texts := self._texts_of_torch(calls)):
                end_with_findings(run, RunEnding.MISMATCH, finding)
            run.findings.extend(add_batch_counts((finding,), run.batch_counts()))
            return (yield from self._raise_mismatch(me, calls, texts))
        if any(call.site is not calls[0].site for call in calls) and are_unusual_lines_matched(calls):
            self._notice_different_lines(calls)
        yield from self._complete_calls(me, calls[0].signature, calls, slot.members)

    def _texts_of_torch(self, calls: Sequence[Call]) -> list[str]:
        """Return what torch's exception for a mismatch says on each rank; [] if torch does not compare the calls."""
        run = self._run
        if not all((call.rank, call.group) in run.compared for call in calls):
            return []
        made = Counter([(c.rank, c.group) for c, _ in run.issued if c.operation not in CREATING])  # messages, too
        return mismatch_errors(calls, [made[call.rank, call.group] - 1 for call in calls])

    def _raise_mismatch(self, me: Task, calls: Sequence[Call], texts: Sequence[str]) -> Script:
        """End calls that do not agree by torch's exception, which the program may catch."""
        met = [self._issued.pop(id(call)) for call in calls]
        if self._run.is_observed:
            self._run.observer.completed_calls(tuple([issued.name for issued in met]))
        for issued, text in zip(met, texts, strict=True):
            yield FailCalls((issued.name,), CallFailure("RuntimeError", text, None))
        self._run.record_event(_MATCH, me.rank.last_call, "refused")
        self._mark_complete(met)

    def _notice_different_lines(self, calls: Sequence[Call]) -> None:
        lines = frozenset([call.site for call in calls])
        has_shadow = any(call.origin.shadow for call in calls)
        if lines not in self._lines_met and not has_shadow:  # a loop issues from the same lines repeatedly
            self._lines_met.add(lines)
            self._run.noticed.append(Noticed(NoticedKind.LINES_MEET, tuple(calls)))

    def _post_message(self, me: Task, call: Call) -> Script:
        run = self._run
        if call.operation == "send":
            receive = run.messages.post_send(call)
            if run.is_observed:
                is_answer = receive is not None and receive.peer == ANY_SOURCE
                mode = AccessMode.ANSWER if is_answer else AccessMode.SEND
                run.observer.accessed(me.number, Access(channel_object(call), mode))
            if receive is not None:
                yield from self._match_message(me, call, receive)
            return
        candidates = run.messages.waiting_sends(call)
        if not candidates:
            run.messages.post_receive(call)
            if run.is_observed and call.peer == ANY_SOURCE:
                run.observer.accessed(me.number, Access(channel_object(call), AccessMode.POST))
            return
        send = self._choose_source(me, call, candidates)
        run.messages.remove_send(send)
        yield from self._match_message(me, send, call)

    def _choose_source(self, me: Task, receive: Call, candidates: Sequence[Call]) -> Call:
        """Return the send that matches a receive; the schedule chooses one of them for a receive from any source."""
        ranks = [call.rank for call in candidates]
        chosen = candidates[self._turns.choose(ChoiceKind.SOURCE, me.number, ranks)]
        if self._run.is_observed and receive.peer == ANY_SOURCE:
            access = Access(channel_object(receive), AccessMode.RECEIVE)
            self._run.observer.accessed(me.number, access, chosen.rank, ranks)
        return chosen

    def _match_message(self, me: Task, send: Call, receive: Call) -> Script:
        code = message_differing_field(send, receive)
        if code is not None:
            self._record_last_arrival(me, receive)
            finding = message_mismatch_finding(send, receive, code, self._run.steps, issued=self._run.all_calls())
            end_with_findings(self._run, RunEnding.MISMATCH, finding)
        taken = f"{FROM_RANK}{send.rank}" if receive.peer == ANY_SOURCE else ""
        members = self._run.slots.members_of(send.group)
        yield from self._complete_calls(me, send.signature, (send, receive), members, taken)

    def _record_last_arrival(self, me: Task, call: Call) -> None:
        """Tell the exploration of schedules, as the run ends, that a call was the last to arrive at its collective."""
        self._run.observer.accessed(me.number, Access(call_object(call), AccessMode.READ))

    def _complete_calls(
        self, me: Task, signature: Signature, calls: Sequence[Call], members: tuple[int, ...], text: str = ""
    ) -> Script:
        """Move the data of matched calls, and mark them as complete; each rank learns of this when it runs next."""
        run = self._run
        met = [self._issued.pop(id(call)) for call in calls]
        names = tuple([issued.name for issued in met])
        if run.is_observed:
            run.observer.completed_calls(names)
        if run.connections is not None:
            run.connections.record_connections(calls)
        moved = yield MoveTensors(signature, names, members)
        run.record_event(_MATCH, me.rank.last_call, text if moved.error is None else "refused")
        self._mark_complete(met)

    def _mark_complete(self, met: Sequence[IssuedCall]) -> None:
        for issued in met:
            owner = issued.rank
            del owner.open[issued.handle]
            owner.completed.append(issued.handle)
            for task in owner.tasks:
                wait = task.wait
                if (isinstance(wait, CallWait) and issued.call in wait.calls) or (
                    isinstance(wait, LockWait) and wait.lock == futures_object(owner.rank)
                ):  # a callback of the call may set the future
                    self._turns.wake_task(task.number)
            if self._streams is not None:
                self._streams.remove_call(issued, self._starting)

    def _expire_waits(self, due: DueWaits) -> Script:
        """End waits whose time is over: for calls, by an error, on other ranks, too, whose connections are closed."""
        run, time_outs = self._run, self._turns.time_outs
        run.clock.now = max(run.clock.now, due.moment)
        for task in due.tasks:
            self._turns.wake_task(task.number, from_outside=True, change=TaskChange.RING)
        yield from self._fail_calls([(issued, time_outs.time_out(issued, due.seconds)) for issued in due.calls])
        yield from self._fail_calls(time_outs.list_cut_off({issued.call.group for issued in due.calls}))

    def _fail_call_and_its_partners(self, call: Call, failure: CallFailure) -> Script:
        """End a call by an error, and those that wait for the same connection."""
        yield from self._fail_call(self._issued[id(call)], failure)
        yield from self._fail_calls(self._turns.time_outs.list_cut_off({call.group}))

    def _fail_calls(self, failures: Sequence[tuple[IssuedCall, CallFailure]]) -> Script:
        for issued, failure in failures:
            yield from self._fail_call(issued, failure)

    def _fail_call(self, issued: IssuedCall, failure: CallFailure) -> Script:
        call = issued.call
        del self._issued[id(call)]
        (self._run.slots if call.peer is None else self._run.messages).remove_call(call)
        yield FailCalls((issued.name,), failure)
        self._run.record_event(EventKind.NOTE, text=f"{call.title} of rank {call.rank} ends with an error")
        self._mark_complete([issued])

    def on_ask_missing_ranks(self, me: Task, request: AskMissingRanks) -> tuple[int, ...]:
        """Answer a rank's `AskMissingRanks` request: return the ranks that have not made a given collective."""
        call = me.rank.open[request.handle].call
        slot = self._run.slots.find_collective(call)
        if slot is None:  # the call itself waits behind other calls of its rank
            return tuple(rank for rank in sorted(self._run.slots.members_of(call.group)) if rank != call.rank)
        return slot.missing
