"""One execution: N ranks run one program under one schedule, and everything they do to each other passes through here.

The layers above give it three things: `enter_rank`, a context in which each rank's program runs; `isolation`, which
swaps what a process owns at every hand-over; and `move`, which moves the data of calls that have met. What it does
itself is matching, waiting, faults, the trace, and ending the run with its findings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from threading import get_ident
from typing import Any, Protocol

from ddpsim.simulator.accesses import Access, Accesses, Mode
from ddpsim.simulator.budget import Budget
from ddpsim.simulator.calls import ANY_SOURCE, Call, Signature
from ddpsim.simulator.choices import ChoiceKind, Policy
from ddpsim.simulator.clock import VirtualClock
from ddpsim.simulator.diagnosis.deadlock import deadlocks
from ddpsim.simulator.diagnosis.mismatch import mismatch, pair_mismatch
from ddpsim.simulator.diagnosis.open_slots import early_mismatches
from ddpsim.simulator.diagnosis.snapshot import Snapshot
from ddpsim.simulator.diagnosis.wait_graph import waiting
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.faults import Crash, Delay, Fault, FaultPlan
from ddpsim.simulator.matching.agreement import disagreement, pair_disagreement
from ddpsim.simulator.matching.point_to_point import PointToPointTable, channel_of
from ddpsim.simulator.matching.slots import Slot, SlotTable, call_object, order_object
from ddpsim.simulator.runtime import limits, outcome
from ddpsim.simulator.runtime.garbage import fewer_collections
from ddpsim.simulator.runtime.observer import Observer
from ddpsim.simulator.runtime.outcome import snapshot_of
from ddpsim.simulator.runtime.rank_thread import Pending, Rank, RankReturned, RankThread, RankUnwound, Status
from ddpsim.simulator.runtime.scheduler import Scheduler
from ddpsim.simulator.runtime.threads import Threads
from ddpsim.simulator.verdict import Finding
from ddpsim.simulator.waits import CallWait, ClockWait, LockWait, StoreWait, Wait, Waiting

_CLOCK_READS_PER_POLL = 1_000
"""So many looks at the clock with nothing else in between are a loop that waits for time to pass."""


Move = Callable[[Signature, Sequence[Pending], Sequence[int]], Exception | None]
"""Moves the data of calls that have met: what agrees, their pendings, the members of the group -> what went wrong."""


class Isolation(Protocol):
    """Swaps what a process owns when the baton changes hands; None stands for the process outside the simulation."""

    def install(self) -> None:
        """Take over the process."""

    def switch(self, outgoing: int | None, incoming: int | None) -> None:
        """Put away the outgoing rank's state, and bring out the incoming one's."""

    def uninstall(self) -> None:
        """Leave the process as it was before `install`."""


class Execution:
    """The state of one run."""

    def __init__(
        self,
        program: Callable[[int], Any],
        world_size: int,
        *,
        policy: Policy,
        budget: Budget,
        faults: FaultPlan,
        isolation: Isolation,
        move: Move,
        enter_rank: Callable[[int], AbstractContextManager[object]],
        enter_thread: Callable[[], object],
        hazards: HazardWatch,
        name_parameters: outcome.NameParameters | None = None,
        share_core: bool = True,
    ) -> None:
        self.world_size = world_size
        self.clock = VirtualClock()
        self.slots = SlotTable()
        self.messages = PointToPointTable()
        self.events: list[Event] = []
        self.findings: list[Finding] = []
        self.errors: dict[int, BaseException] = {}
        self.waiting: tuple[Waiting, ...] = ()
        self.optimizer_steps = [0] * world_size
        self.ranks = [Rank(rank, self._run_rank) for rank in range(world_size)]
        self.hazards = hazards
        self.observer: Observer | None = getattr(policy, "observer", None)
        self.scheduler = Scheduler(
            [rank.main for rank in self.ranks],
            policy,
            self.clock,
            switch=isolation.switch,
            on_idle=self._diagnose_idle,
            observer=self.observer,
            share_core=share_core,
        )
        self.threads = Threads(self, enter_thread)
        self._clock_reads = 0
        self._clock_read_at = 0
        self._program = program
        self._budget = budget
        self._faults = faults
        self._isolation = isolation
        self._move = move
        self._enter_rank = enter_rank
        self._name_parameters = name_parameters
        self._process = os.getpid()
        self._pendings: dict[int, Pending] = {}
        # by id() of the call: hashing a call's many fields would cost more than the rest of its matching

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end. An interrupt of the calling thread (Ctrl-C) comes through once all ranks are unwound."""
        self._isolation.install()
        try:
            with fewer_collections(self.world_size):
                limits.run(self.scheduler, self._budget, report=self.findings.append, snapshot=self.snapshot)
        finally:
            self._isolation.uninstall()
            for rank in self.ranks:
                if rank.main.ident and rank.main.thread is not None:
                    rank.main.thread.join(timeout=0.2 if rank.status is Status.ABANDONED else None)
            self.threads.join()
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, thread = self.scheduler.failure, self.scheduler.failed_under
        if isinstance(failure, RecursionError) and thread is not None:
            self.errors.setdefault(thread.rank, failure)  # the rank's own recursion left the machinery no room
            thread.of.error = failure
        elif failure is not None:
            raise failure

    def _run_rank(self, me: RankThread) -> None:
        status = Status.UNWOUND
        try:
            status = self._run_program(me)
            self._end_rank(me, status)
        except RankUnwound:  # of an interrupt that came as the program ended: the baton is still here
            self._end_rank(me, status)

    def _end_rank(self, me: RankThread, status: Status) -> None:
        try:
            if status is Status.RETURNED and not self.scheduler.is_stopping:
                self.record(EventKind.RETURN)
                self.hazards.rank_ended(me.rank)
        except Exception as error:  # a bug of ours must not leave the others asleep
            self.scheduler.break_off_by_bug(error)
        finally:
            self.scheduler.finish(me, status)

    def _run_program(self, me: RankThread) -> Status:
        __tracebackhide__ = True  # pytest then begins with the program
        status = Status.UNWOUND
        try:
            me.baton.acquire()  # inside: the end of a run may interrupt whoever has just got it
            if not self.scheduler.is_stopping:
                with self._enter_rank(me.rank):
                    value = self._program(me.rank)
                    self.threads.outlast(me)
                # Whatever a program does on its way out of a finished execution is a consequence, not a finding.
                if not self.scheduler.is_stopping:
                    me.of.value, status = value, Status.RETURNED
        except RankUnwound:
            pass
        except BaseException as error:
            error = me.fate or error  # C++ may have wrapped what a fault raised
            if isinstance(error, RankReturned):
                status = Status.RETURNED
            elif not self.scheduler.is_stopping:
                status = Status.RAISED
                self._record_error(me, error)
            self._outlast_threads(me)
        return status

    def _outlast_threads(self, me: RankThread) -> None:
        """Wait for the threads of a rank whose program has not come to its end."""
        try:
            self.threads.outlast(me)
        except RankUnwound:
            pass
        except Exception as error:  # a bug of ours, as below
            self.scheduler.break_off_by_bug(error)

    def _record_error(self, me: RankThread, error: BaseException) -> None:
        me.of.error = error
        self.errors[me.rank] = error
        self.record(EventKind.RAISE, text=type(error).__name__)

    def fail(self, *findings: Finding) -> None:
        """End the run with findings; the caller is unwound."""
        self.findings.extend(findings)
        self.waiting = waiting(self.snapshot())
        if self.observer is not None:
            self.observer.cut_short(self.scheduler.enabled)
        self.scheduler.stop()
        raise RankUnwound

    # --- what a running rank does -------------------------------------------------------------------------------------

    @property
    def me(self) -> RankThread:
        """The running thread of a rank."""
        running = self.scheduler.running
        if running is None:
            raise RankUnwound
        return running

    def is_rank_thread(self) -> bool:
        """True on the running thread of a rank. False in a process forked from it, where the thread is the same."""
        running = self.scheduler.running
        return running is not None and running.ident == get_ident() and os.getpid() == self._process

    def record(self, kind: EventKind, *, call: Call | None = None, text: str = "") -> None:
        """Write an event of the running rank into the trace."""
        scheduler = self.scheduler
        me = scheduler.running
        assert me is not None
        self.events.append(Event(kind, me.of.rank, scheduler.steps, self.clock.now, call, text, me.name))

    def checkpoint(self, intent: Accesses = ()) -> None:
        """A choice point before `intent`; afterwards completions that came in the meantime are delivered."""
        scheduler = self.scheduler
        if self.observer is not None:
            self.observer.intends(self.me.number, intent)
        me = scheduler.checkpoint()
        if scheduler.steps > self._budget.steps:
            self.fail(outcome.out_of_steps(self.me, self._budget, self.snapshot()))
        if me.of.completed:
            self._deliver(me)

    def poll(self, intent: Accesses = ()) -> None:
        """A choice point for a caller that looked for something in vain: the others go first."""
        if self.observer is not None:
            self.observer.intends(self.me.number, intent, looks_again=True)
        polls = self.scheduler.yield_to_others()
        if polls > self._budget.polls:
            self.fail(outcome.spins(self.me, polls, self.snapshot()))
        if self.scheduler.steps > self._budget.steps:
            self.fail(outcome.out_of_steps(self.me, self._budget, self.snapshot()))
        self._deliver(self.me)

    def begin_call(self, intent: Accesses = ()) -> None:
        """The choice point before a call, and the faults that strike there."""
        self.checkpoint(intent)
        me, rank = self.me, self.me.of
        if me.fate is not None:
            me.fate = copy(me.fate)  # a crash stays one, whatever the program does on its way out
            raise me.fate
        number = rank.calls_made
        rank.calls_made += 1  # before the faults: another thread of the rank may make calls, too
        if self._faults:
            self._strike(me, self._faults.before(me.rank, number), number)

    def _strike(self, me: RankThread, faults: Sequence[Fault], number: int) -> None:
        for fault in faults:
            self.record(EventKind.FAULT, text=type(fault).__name__)
            if isinstance(fault, Delay):
                self.sleep(fault.seconds)
            elif isinstance(fault, Crash):
                me.fate = InjectedCrashError(f"{fault.message} (rank {me.rank}, before call {number})")
                raise me.fate
            else:
                me.fate = RankReturned()
                raise me.fate

    def issue(self, call: Call, pending: Pending) -> None:
        """Make a call. If it is the last of its slot, or its message's partner waits, the data moves now."""
        rank = pending.owner
        self.scheduler.note_progress()
        rank.last_call = call
        rank.pending.append(pending)
        self._pendings[id(call)] = pending
        self.hazards.issued(pending)
        if self.observer is not None:
            self.observer.issued(pending)
            self.observer.touched(pending.issuer, Access(call_object(call), Mode.CONTRIBUTE))
            if rank.has_started_threads:
                self.observer.touched(pending.issuer, Access(order_object(call), Mode.WRITE))
        self.record(EventKind.ISSUE, call=call)
        if call.peer is not None:
            self._issue_message(call)
        else:
            slot = self.slots.arrive(call)
            if slot.is_full:
                self._fill(slot)

    def announce(self, call: Call) -> None:
        """Tell the members of a new group what this rank, which is none of them, takes the group for."""
        slot = self.slots.arrive(call)
        if call.rank in slot.calls and slot.is_full:
            self._fill(slot)

    def wait(self, pendings: Sequence[Pending], timeout_seconds: float | None = None) -> bool:
        """Wait until one of the calls is complete, and deliver what is complete. False if the time-out came first."""
        self.checkpoint()
        for pending in pendings:
            if pending.is_complete:
                self._learn(pendings)
                if self.me.of.delivering:
                    self._see_delivered(pendings)
                return True
        calls = tuple(pending.call for pending in pendings)
        self.record(EventKind.WAIT, call=calls[0])
        in_time = self.block(CallWait(calls), timeout_seconds)
        in_time = in_time or any(pending.is_complete for pending in pendings)  # at the very moment
        self._learn(pendings)
        if self.me.of.delivering:
            self._see_delivered(pendings)
        self.record(EventKind.DONE, call=calls[0], text="" if in_time else "timed out")
        return in_time

    def block(self, wait: Wait, timeout_seconds: float | None = None) -> bool:
        """Wait until woken. False if the time-out came first."""
        me = self.me
        me.timed_out = False
        me.has_alarm = timeout_seconds is not None
        if timeout_seconds is not None:
            self.clock.set_alarm(me.number, timeout_seconds)
        if self.observer is not None:
            self.observer.intends(me.number, _touched_after(wait))
        self.scheduler.block(wait)
        self._deliver(me)
        return not me.timed_out

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass. To sleep for no time is to let the others run."""
        if not seconds:
            return self.poll()
        self.checkpoint()
        self.record(EventKind.SLEEP, text=repr(seconds))
        self.block(ClockWait(seconds), seconds)

    def now(self) -> float:
        """Virtual seconds, as a rank reads them. One that does nothing but look at the clock polls it."""
        steps = self.scheduler.steps
        self._clock_reads = self._clock_reads + 1 if steps == self._clock_read_at else 0
        self._clock_read_at = steps
        if self._clock_reads >= _CLOCK_READS_PER_POLL:
            self.poll()
        return self.clock.now

    def choose_source(self, receive: Call, candidates: Sequence[Call]) -> Call:
        """Which sender's message a receive takes; one from any source has a choice."""
        ranks = [call.rank for call in candidates]
        me = self.me.number
        chosen = candidates[self.scheduler.choose(ChoiceKind.SOURCE, me, ranks)]
        if self.observer is not None and receive.peer == ANY_SOURCE:
            receiver = self._pendings[id(receive)].issuer
            self.observer.touched(receiver, Access(channel_of(receive), Mode.RECEIVE), chosen.rank, ranks)
        return chosen

    def _learn(self, pendings: Sequence[Pending]) -> None:
        """Somebody who waited for calls has seen which of them are complete."""
        if self.observer is not None:
            for pending in pendings:
                if pending.is_complete:
                    self.observer.learned(self.me.number, pending)

    def _see_delivered(self, pendings: Sequence[Pending]) -> None:
        """Wait for another thread of the rank that runs what follows on the calls that are complete."""
        me = self.me
        while any(thread is not me and pending in pendings for pending, thread in me.of.delivering):
            self.poll()

    # --- matching -----------------------------------------------------------------------------------------------------

    def _fill(self, slot: Slot) -> None:
        calls = [slot.calls[rank] for rank in slot.members]
        code = disagreement(calls)
        if code is not None:
            self.fail(mismatch(calls, code, self.scheduler.steps))
        self.hazards.slot_filled(calls)
        self._complete(calls[0].signature, calls)

    def _issue_message(self, call: Call) -> None:
        if call.operation == "send":
            receive = self.messages.post_send(call)
            if self.observer is not None:
                is_answer = receive is not None and receive.peer == ANY_SOURCE
                self.observer.touched(self.me.number, Access(channel_of(call), Mode.ANSWER if is_answer else Mode.SEND))
            if receive is not None:
                self._exchange(call, receive)
            return
        candidates = self.messages.candidates(call)
        if not candidates:
            self.messages.post_receive(call)
            return
        send = self.choose_source(call, candidates)
        self.messages.take(send)
        self._exchange(send, call)

    def _exchange(self, send: Call, receive: Call) -> None:
        code = pair_disagreement(send, receive)
        if code is not None:
            self.fail(pair_mismatch(send, receive, code, self.scheduler.steps))
        self._pendings[id(receive)].source = send.rank
        taken = f"from rank {send.rank}" if receive.peer == ANY_SOURCE else ""
        self._complete(send.signature, (send, receive), taken)

    def _complete(self, signature: Signature, calls: Sequence[Call], text: str = "") -> None:
        """Move the data of calls that have met; their ranks learn of it when they run next."""
        pendings = [self._pendings.pop(id(call)) for call in calls]
        if self.observer is not None:
            self.observer.completed(pendings)
        with self.threads.aside:  # a transport may have threads of its own
            error = self._move(signature, pendings, self.slots.members(calls[0].group))
        self.record(EventKind.MATCH, call=self.me.of.last_call, text=text if error is None else "refused")
        for pending in pendings:
            pending.is_complete = True
            pending.error = copy(error)  # one for each: what raises it adds frames
            owner = pending.owner
            owner.pending.remove(pending)
            owner.completed.append(pending)
            for thread in owner.threads:
                if isinstance(thread.wait, CallWait) and pending.call in thread.wait.calls:
                    self.scheduler.wake(thread.number)

    def _deliver(self, me: RankThread) -> None:
        """Hand completions to the running rank, in the order they came: futures are set, their chains run here.

        On whichever of its threads runs next: a thread may wait for what another one issued.
        """
        completed = me.of.completed
        while completed:
            pending = completed.pop(0)
            me.of.delivering.append((pending, me))
            try:
                pending.receive_completion()
            finally:
                me.of.delivering.remove((pending, me))
            pending.release()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _diagnose_idle(self) -> bool:
        """Nobody is enabled, and the clock has nothing to fire: say why ranks wait, if any do.

        True if that is no longer so, because a thread outside the simulation woke one.
        """
        if all(rank.is_finished for rank in self.ranks):
            return False
        if self.threads.aside.await_outsiders():
            return True
        mismatches = [finding for _, finding in early_mismatches(self.slots, self.scheduler.steps)]
        snapshot = self.snapshot()
        self.waiting = waiting(snapshot)
        self.findings.extend(mismatches or deadlocks(snapshot))
        return False

    def snapshot(self) -> Snapshot:
        """Every rank and every open slot, as frozen values."""
        steps = self.scheduler.steps
        return snapshot_of(self.ranks, self.slots, self.messages, self.optimizer_steps, steps, self.events)

    def all_findings(self) -> tuple[Finding, ...]:
        """What ranks raised, in the order they did, the same error once for all; then the rest, hazards last."""
        found = sorted(self.findings, key=lambda finding: finding.code.value.startswith("hazard."))
        return (
            *outcome.raised(self.errors, self._name_parameters),
            *found,
            *self.threads.findings(),
            *self.hazards.findings(),
        )


def _touched_after(wait: Wait) -> Accesses:
    """What a thread touches when it goes on after a wait."""
    if isinstance(wait, StoreWait):
        return tuple(Access(("key", key), Mode.READ) for key in wait.keys)
    return (Access(wait.lock, Mode.CONTRIBUTE),) if isinstance(wait, LockWait) else ()


class HazardWatch(Protocol):
    """Looks for what passes here and may fail elsewhere."""

    def issued(self, pending: Pending) -> None:
        """A rank issued a call."""

    def settled(self, pending: Pending) -> None:
        """The owner of a call waits for it, or has found it complete."""

    def unwaited(self, rank: int) -> Sequence[Call]:
        """The user's calls that a rank has not waited for yet."""

    def slot_filled(self, calls: Sequence[Call]) -> None:
        """Calls met and agree."""

    def rank_ended(self, rank: int) -> None:
        """A rank's program returned."""

    def findings(self) -> Sequence[Finding]:
        """What was found."""
