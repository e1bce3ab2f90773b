"""Begins, issues, matches and completes calls. How a rank waits for calls is in pauses.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ddpsim.simulator.accesses import Access, Mode
from ddpsim.simulator.calls import ANY_SOURCE, Call, Signature, Site
from ddpsim.simulator.choices import ChoiceKind
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.diagnosis.mismatch import mismatch, pair_mismatch
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.faults import Delay, FaultPlan
from ddpsim.simulator.kernel.answers import Move, Strike
from ddpsim.simulator.kernel.endings import RequestEnded, fail
from ddpsim.simulator.kernel.pauses import Pauses
from ddpsim.simulator.kernel.requests import Announce, BeginCall, CloseBatch, Issue, Missing, OpenBatch
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.kernel.scheduler import Turns
from ddpsim.simulator.kernel.states import Ending
from ddpsim.simulator.kernel.tasks import IssuedCall, Script, Task
from ddpsim.simulator.matching.agreement import branches_meet, disagreement, pair_disagreement
from ddpsim.simulator.matching.point_to_point import channel_of
from ddpsim.simulator.matching.slots import Slot, call_object, order_object
from ddpsim.simulator.waits import CallWait

_ISSUE, _MATCH = EventKind.ISSUE, EventKind.MATCH  # faster to look up, see scheduler.py
_new = tuple.__new__


class Exchange:
    """The calls of one execution."""

    def __init__(self, run: Run, turns: Turns, pauses: Pauses, faults: FaultPlan) -> None:
        self._run = run
        self._turns = turns
        self._pauses = pauses
        self._faults = faults
        self._has_faults = bool(faults)
        self._streams = run.streams
        self._starting: deque[IssuedCall] = deque()
        """Calls at the head of their streams that have not reached their collective yet."""
        self._issued: dict[int, IssuedCall] = {}
        # by id() of the call: hashing a call's many fields would cost more than the rest of its matching
        self._lines_met: set[frozenset[Site]] = set()
        """Sets of program lines whose calls have already been reported as matched from different lines."""

    # --- before a call ------------------------------------------------------------------------------------------------

    def on_begin(self, me: Task, request: BeginCall) -> Script | None:
        """Handle a `BeginCall` request: a choice point before a call, where injected faults strike."""
        successor = self._turns.yield_point(me, request.intent)
        if successor is None and me.fault is None and not self._has_faults:
            me.rank.calls_made += 1
            return None
        return self._begin(me, successor)

    def _begin(self, me: Task, successor: int | None) -> Script:
        if successor is not None:
            yield from self._pauses.wait_for_turn(me, successor)
        if me.fault is not None:  # a crashed rank stays crashed, even if its program catches the exception
            raise RequestEnded(Strike(*me.fault))
        rank = me.rank
        number = rank.calls_made
        rank.calls_made += 1  # before the faults: another thread of the rank may make calls, too
        if self._has_faults:
            yield from self._strike(me, number)

    def _strike(self, me: Task, number: int) -> Script:
        for fault in self._faults.before(me.rank.rank, number):
            self._run.record(EventKind.FAULT, text=type(fault).__name__)
            if isinstance(fault, Delay):
                yield from self._pauses.sleep(me, fault.seconds)
            else:
                me.fault = fault, number
                raise RequestEnded(Strike(fault, number))

    # --- issuing ------------------------------------------------------------------------------------------------------

    def on_issue(self, me: Task, request: Issue) -> Script | None:
        """Handle an `Issue` request: record the call, and match it with the calls of other ranks."""
        run = self._run
        handle, call = request
        # As IssuedCall(...) makes it, in half the time.
        issued = _new(IssuedCall, (call, handle, me.rank, (me.rank_number, handle)))
        self._turns.note_progress()
        me.rank.last_call = call
        me.rank.open[handle] = self._issued[id(call)] = issued
        if run.observer is not None:
            run.observer.touched(me.number, Access(call_object(call), Mode.CONTRIBUTE))
            if me.rank.has_started_threads:
                run.observer.touched(me.number, Access(order_object(call), Mode.WRITE))
            run.observer.issued(me.number, issued.name, call)  # after what an observer of the call learns is recorded
        run.record(_ISSUE, call)
        run.issued.append((call, me.number))
        origin = call.origin
        if origin.step is not None and origin.wrapper is not None:
            wrapper = call.group, origin.wrapper
            run.steps_of_wrappers[wrapper] = max(origin.step, run.steps_of_wrappers.get(wrapper, 0))
        if self._streams is not None and self._streams.has(call):
            return self._start_all(me) if self._streams.join(issued, self._starting) else None
        return self._start(me, call)

    def _start_all(self, me: Task) -> Script:
        """Start the calls at the head of their streams, in a loop and not recursively, as there may be many."""
        while self._starting:
            script = self._start(me, self._starting.popleft().call)
            if script is not None:
                yield from script

    def _start(self, me: Task, call: Call) -> Script | None:
        """Let a call take its place in its collective, or match it with a message."""
        if call.peer is not None:
            return self._issue_message(me, call)
        slot = self._run.slots.arrive(call)
        return self._fill(me, slot) if slot.is_full else None

    def open_batch(self, me: Task, request: OpenBatch) -> None:
        """Handle an `OpenBatch` request: the rank's next calls form one batch on its stream."""
        if self._streams is not None:
            self._streams.open_batch(me.rank_number)

    def close_batch(self, me: Task, request: CloseBatch) -> None:
        """Handle a `CloseBatch` request: the batch is complete."""
        if self._streams is not None:
            self._streams.close_batch(me.rank_number)

    def on_announce(self, me: Task, request: Announce) -> Script:
        """Handle an `Announce` request: a rank outside a new group states what it knows of the group."""
        slot = self._run.slots.arrive(request.call)
        if request.call.rank in slot.calls and slot.is_full:
            yield from self._fill(me, slot)

    def _fill(self, me: Task, slot: Slot) -> Script:
        calls = [slot.calls[rank] for rank in slot.members]
        code = disagreement(calls)
        if code is not None:
            self._see_others(me, calls[0])
            fail(self._run, Ending.MISMATCH, mismatch(calls, code, self._run.steps, issued=self._run.calls()))
        if any(call.site is not calls[0].site for call in calls) and branches_meet(calls):
            self._notice_lines(calls)
        yield from self._complete(me, calls[0].signature, calls, slot.members)

    def _notice_lines(self, calls: Sequence[Call]) -> None:
        lines = frozenset([call.site for call in calls])
        has_shadow = any(call.origin.shadow for call in calls)
        if lines not in self._lines_met and not has_shadow:  # a loop issues from the same lines repeatedly
            self._lines_met.add(lines)
            self._run.noticed.append(Noticed(NoticedKind.LINES_MEET, tuple(calls)))

    def _issue_message(self, me: Task, call: Call) -> Script:
        run = self._run
        if call.operation == "send":
            receive = run.messages.post_send(call)
            if run.observer is not None:
                is_answer = receive is not None and receive.peer == ANY_SOURCE
                run.observer.touched(me.number, Access(channel_of(call), Mode.ANSWER if is_answer else Mode.SEND))
            if receive is not None:
                yield from self._exchange(me, call, receive)
            return
        candidates = run.messages.candidates(call)
        if not candidates:
            run.messages.post_receive(call)
            if run.observer is not None and call.peer == ANY_SOURCE:
                run.observer.touched(me.number, Access(channel_of(call), Mode.POST))
            return
        send = self._choose_source(me, call, candidates)
        run.messages.take(send)
        yield from self._exchange(me, send, call)

    def _choose_source(self, me: Task, receive: Call, candidates: Sequence[Call]) -> Call:
        """Return the send that a receive matches. A receive from any source has a choice."""
        ranks = [call.rank for call in candidates]
        chosen = candidates[self._turns.choose(ChoiceKind.SOURCE, me.number, ranks)]
        observer = self._run.observer
        if observer is not None and receive.peer == ANY_SOURCE:
            observer.touched(me.number, Access(channel_of(receive), Mode.RECEIVE), chosen.rank, ranks)
        return chosen

    def _exchange(self, me: Task, send: Call, receive: Call) -> Script:
        code = pair_disagreement(send, receive)
        if code is not None:
            self._see_others(me, receive)
            fail(self._run, Ending.MISMATCH, pair_mismatch(send, receive, code, self._run.steps))
        taken = f"from rank {send.rank}" if receive.peer == ANY_SOURCE else ""
        members = self._run.slots.members(send.group)
        yield from self._complete(me, send.signature, (send, receive), members, taken)

    def _see_others(self, me: Task, call: Call) -> None:
        """Record that a call was the last of its collective. A mismatched call ends the run, so the order matters."""
        if self._run.observer is not None:
            self._run.observer.touched(me.number, Access(call_object(call), Mode.READ))

    def _complete(
        self, me: Task, signature: Signature, calls: Sequence[Call], members: tuple[int, ...], text: str = ""
    ) -> Script:
        """Move the data of matched calls. Their ranks are notified when they run next."""
        run = self._run
        met = [self._issued.pop(id(call)) for call in calls]
        names = tuple([issued.name for issued in met])
        if run.observer is not None:
            run.observer.completed(names)
        if run.connections is not None:
            run.connections.made(calls)
        moved = yield Move(signature, names, members)
        run.record(_MATCH, me.rank.last_call, text if moved.error is None else "refused")
        for issued in met:
            owner = issued.rank
            del owner.open[issued.handle]
            owner.completed.append(issued.handle)
            for task in owner.tasks:
                if isinstance(task.wait, CallWait) and issued.call in task.wait.calls:
                    self._turns.wake(task.number)
            if self._streams is not None:
                self._streams.leave(issued, self._starting)

    def missing(self, me: Task, request: Missing) -> tuple[int, ...]:
        """Handle a `Missing` request: return the ranks that have not made their call of a collective."""
        call = me.rank.open[request.handle].call
        slot = self._run.slots.slot_of(call)
        if slot is None:  # the call itself waits in its stream
            return tuple(rank for rank in sorted(self._run.slots.members(call.group)) if rank != call.rank)
        return slot.missing
