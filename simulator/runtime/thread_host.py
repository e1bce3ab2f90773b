"""The host that runs ranks as threads: it carries their requests to the kernel, and does what the answers say.

Exactly one thread runs at a time, the one that has the baton. A rank gives it away only inside a request (`ask`,
`begin_call`, `issue`, `wait`) or at its end, on its own thread, and the receiver wakes up inside its own. The kernel
runs on whichever thread asks, so there is no scheduler thread and a context switch costs one lock release and one
acquire.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock as _allocate_lock
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from threading import get_ident as _thread_ident
from typing import Any, NoReturn

from ddpsim.simulator.accesses import Access, Accesses, Mode
from ddpsim.simulator.calls import Signature
from ddpsim.simulator.errors import InjectedCrashError, UsageError
from ddpsim.simulator.faults import Crash
from ddpsim.simulator.kernel.answers import (
    GO_ON,
    Answer,
    Deliver,
    GoOn,
    LookOutside,
    Move,
    Refuse,
    Strike,
    Switch,
    TellStack,
)
from ddpsim.simulator.kernel.requests import (
    BeginCall,
    Block,
    Checkpoint,
    Delivered,
    Finish,
    IsComplete,
    Issue,
    Looked,
    Moved,
    Poll,
    Reply,
    Request,
    StartThread,
    WaitFor,
)
from ddpsim.simulator.kernel.states import Change, Phase
from ddpsim.simulator.matching.slots import call_object
from ddpsim.simulator.runtime.baton import Baton, stack_of
from ddpsim.simulator.runtime.host import CallWatch, Pending
from ddpsim.simulator.runtime.kernel_port import KernelPort
from ddpsim.simulator.runtime.prompt_server import PromptServer
from ddpsim.simulator.runtime.rank_thread import Rank, RankReturned, RankThread, RankUnwound
from ddpsim.simulator.runtime.threads import Threads
from ddpsim.simulator.waits import CallWait

_MOST_UNWINDS = 1_000
"""A program may catch what carries it out, and clean up; this often it does not mean to leave."""

_RUNNING = Phase.RUNNING  # as in turns.py
_new = tuple.__new__
"""As a request's class makes one, in half the time; for the three requests that each call makes."""
_DELIVERED = Delivered()
_MOVED = Moved()

MoveData = Callable[[Signature, Sequence[Pending], Sequence[int]], Exception | None]
"""Moves the data of calls that have met: what agrees, their pendings, the members of the group -> what went wrong."""


class ThreadHost:
    """The ranks of one execution as threads."""

    def __init__(
        self,
        kernel: KernelPort,
        world_size: int,
        body: Callable[[RankThread], None],
        *,
        switch: Callable[[int | None, int | None], None],
        move_data: MoveData,
        hazards: CallWatch,
        enter_thread: Callable[[], object],
        owns_modules: bool = False,
    ) -> None:
        """`body` is what the thread of a rank runs; `switch` swaps what a process owns, from one rank to another.

        `owns_modules`: what modules make while a rank imports them is that rank's, in a process of its own.
        """
        self.kernel = kernel
        self.hazards = hazards
        self.ranks = [Rank(record, body) for record in kernel.run.ranks]
        self.world_size = world_size
        self.threads = Threads(self, enter_thread, owns_modules=owns_modules)
        self.is_observed = kernel.run.is_observed
        """Somebody explores, and wants to know what each step touches."""
        self.baton = Baton(kernel, self.ranks, switch)
        self.prompt_server = PromptServer(self.baton.over.release)
        self._move_data = move_data
        self._process = os.getpid()
        self._unwinds: Counter[int] = Counter()
        """How often each thread was carried out of its program, by ident."""

    @property
    def is_stopping(self) -> bool:
        """True once the execution has come to its end, and every thread is carried out of what it runs."""
        return self.kernel.run.life.phase is not _RUNNING

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return self.kernel.run.steps

    # --- what a running rank may ask ----------------------------------------------------------------------------------

    @property
    def me(self) -> RankThread:
        """The running thread of a rank."""
        running = self.baton.running
        if running is None:
            raise RankUnwound
        return running

    def is_rank_thread(self) -> bool:
        """True on the running thread of a rank. False in a process forked from it, where the thread is the same."""
        running = self.baton.running
        return running is not None and running.asker == _thread_ident() and os.getpid() == self._process

    def is_unwinding(self, me: RankThread) -> bool:
        """True if a thread is being carried out of what it runs."""
        return self.kernel.is_unwinding(me.task)

    def ask(self, request: Request) -> Any:
        """Carry a request of the running thread to the kernel, do what the answers say, and return the last value."""
        me = self.baton.running
        if me is None or me.asker != _thread_ident():
            self._refuse_stranger(me)
        answer = self.kernel.handle(request)
        return answer.value if type(answer) is GoOn else self._obey(me, answer)

    def _obey(self, me: RankThread, answer: Answer) -> Any:
        """Do what answers say until the request is served."""
        kernel = self.kernel
        while True:
            if type(answer) is Switch:
                self.baton.pass_on(me, answer.to)
                me.baton.acquire()  # as me.sleep() does it
                if me.visit is not None:
                    me.sleep_on()
                if kernel.run.life.phase is not _RUNNING:
                    me.see_end()
                answer = kernel.resume(me.task)
            elif type(answer) is GoOn:
                return answer.value
            elif type(answer) is Deliver:
                self._deliver(me, answer.handle)
                answer = kernel.reply(_DELIVERED)
            elif isinstance(answer, (Move, TellStack, LookOutside)):
                answer = kernel.reply(self._carry_out(me, answer))
            else:
                self._raise(me, answer)

    def begin_call(self, intent: Accesses) -> RankThread:
        """The choice point before a call of the running thread, which it returns. A fault may strike here."""
        me = self.baton.running
        if me is None or me.asker != _thread_ident():
            self._refuse_stranger(me)
        answer = self.kernel.handle(_new(BeginCall, (intent,)))
        if answer is not GO_ON:
            self._obey(me, answer)
        return me

    def issue(self, pending: Pending) -> None:
        """Make a call of the running thread."""
        me = self.baton.running
        assert me is not None, "begin_call returned it"
        me.of.pending[pending.handle] = pending
        self.hazards.issued(pending)
        answer = self.kernel.handle(_new(Issue, (pending.handle, pending.call)))
        if answer is not GO_ON:
            self._obey(me, answer)

    def wait(self, pendings: Sequence[Pending], timeout_seconds: float | None = None) -> bool:
        """Wait until one of the calls is complete, and deliver what is complete. False if the time-out came first."""
        me = self.baton.running
        if me is None or me.asker != _thread_ident():
            self._refuse_stranger(me)
        if pendings[0].owner is not me.of:
            return self._wait_for_others(pendings, timeout_seconds)
        handles = (pendings[0].handle,) if len(pendings) == 1 else tuple([each.handle for each in pendings])
        return bool(self._obey(me, self.kernel.handle(_new(WaitFor, (handles, timeout_seconds)))))

    def _wait_for_others(self, pendings: Sequence[Pending], timeout_seconds: float | None) -> bool:
        """Wait for another rank's calls, which a program has got hold of: nobody says when these are complete."""
        self.ask(Checkpoint())
        if any(pending.is_complete for pending in pendings):
            return True
        return bool(self.ask(Block(CallWait(tuple([pending.call for pending in pendings])), timeout_seconds)))

    def watch(self, pending: Pending) -> None:
        """Something is about to hang on the completion of a call, so that it matters when that is delivered."""
        if not self.is_rank_thread() or pending.owner is not self.me.of or pending.is_complete:
            return
        if self.kernel.watch(pending.handle):
            self._deliver(self.me, pending.handle)

    def is_complete(self, pending: Pending) -> bool:
        """Look whether a call is complete. To look in vain lets the others run."""
        look = Access(call_object(pending.call), Mode.READ)
        if pending.owner is self.me.of:
            self.ask(IsComplete(pending.handle, look))
        else:  # another rank's, which a program has got hold of
            self.ask(Checkpoint((look,)) if pending.is_complete else Poll((look,)))
        return pending.is_complete

    def finish(self, me: RankThread, how: Change) -> None:
        """What the caller ran has ended: give the baton away for good. Called last on a rank's thread.

        If RankUnwound comes out, the baton is still the caller's, who calls again.
        """
        if me.is_abandoned:
            return
        try:
            successor = self._ask_to_finish(me, how)
            if me.exit.claim():
                self.baton.pass_on(me, successor)
        except Exception as error:  # the watcher of the run (limits.py) then takes the baton from this thread
            self.break_off_by_bug(error)

    # --- what answers say ---------------------------------------------------------------------------------------------

    def _deliver(self, me: RankThread, handle: int) -> None:
        pending = me.of.pending.pop(handle)
        try:
            pending.receive_completion()
        except BaseException:
            self.kernel.drop()
            raise
        pending.release()

    def _carry_out(self, me: RankThread, answer: Move | TellStack | LookOutside) -> Reply:
        try:
            if isinstance(answer, Move):
                return self._move(answer)
            return stack_of(me) if isinstance(answer, TellStack) else Looked(self._look_outside(me))
        except BaseException:
            self.kernel.drop()
            raise

    def _move(self, move: Move) -> Moved:
        pendings = [self.ranks[rank].pending[handle] for rank, handle in move.calls]
        if pendings[0].call.peer is None:
            self.hazards.slot_filled(pendings)
        else:
            pendings[1].source, pendings[1].members = pendings[0].call.rank, move.members
        with self.threads.untracked:  # a transport may have threads of its own
            error = self._move_data(move.signature, pendings, move.members)
        for pending in pendings:
            pending.is_complete = True
            pending.error = error and copy(error)  # one for each: what raises it adds frames
            if pending.when_moved is not None:
                pending.when_moved()
        return _MOVED if error is None else Moved(str(error))

    def _look_outside(self, me: RankThread) -> bool:
        try:
            return self.threads.steps.await_external_threads()
        except Exception as error:  # as in _pass_baton
            self.break_off_by_bug(error)
            return False

    def _raise(self, me: RankThread, answer: Any) -> NoReturn:
        if isinstance(answer, Strike):
            fault = answer.fault
            me.fault = (
                InjectedCrashError(f"{fault.message} (rank {me.rank}, before call {answer.call_number})")
                if isinstance(fault, Crash)
                else RankReturned()
            )
            raise me.fault
        if isinstance(answer, Refuse):
            assert answer.kind == "ValueError"
            raise ValueError(answer.text)
        self._unwind()

    # --- the ends of threads ------------------------------------------------------------------------------------------

    def start_thread(self, child: RankThread) -> None:
        """Let the kernel know a thread that the running one has started.

        We know it first: where an interrupt comes in between, the kernel may give it the baton only to leave.
        """
        number = self.kernel.run.started
        self.baton.started[number] = child
        self.ask(StartThread(child.name))
        self.adopt(child)

    def adopt(self, child: RankThread) -> None:
        """Let a thread that a rank has started be what the kernel knows; it may be the thread itself that finds so."""
        if not child.is_adopted:
            number = next(number for number, thread in self.baton.started.items() if thread is child)
            child.adopt(self.kernel.run.tasks[number])
            child.of.has_started_threads = True
            child.of.threads.append(child)

    def _ask_to_finish(self, me: RankThread, how: Change) -> int | None:
        """Who has the baton after a thread that makes no more requests."""
        answer = self.kernel.handle(Finish(how))
        while isinstance(answer, LookOutside):
            answer = self.kernel.reply(self._carry_out(me, answer))
        assert isinstance(answer, Switch), f"{Finish.__name__} was answered by {answer}"
        if not me.is_main and self.baton.started.pop(me.number, None) is not None:
            me.of.threads.remove(me)
        return answer.to

    def _unwind(self) -> NoReturn:
        """Carry the caller out of its program. One that clings to it, whatever is raised, is put to sleep for good.

        Its thread is left behind then (`abandon`), and costs nothing; it would go on for ever otherwise.
        """
        ident = _thread_ident()
        running = self.baton.running
        if running is not None and running.ident == ident:
            running.see_end()
        self._unwinds[ident] += 1
        if self._unwinds[ident] > _MOST_UNWINDS:
            me = self.baton.running
            if me is not None and me.ident == ident and not self.is_stopping:  # a rank that is over, and not the run
                self.baton.pass_on(me, self._ask_to_finish(me, Change.ABANDON))
            for_ever = _allocate_lock()
            for_ever.acquire()
            while True:
                for_ever.acquire()
        raise RankUnwound

    # --- errors of the machinery --------------------------------------------------------------------------------------

    def break_off(self, error: Exception) -> None:
        """End the execution with an error that whoever runs it shall raise, since its rank's own would be lost."""
        self.kernel.run.life.break_off(error, self.me.rank)

    def break_off_by_bug(self, error: Exception) -> None:
        """End the execution with an error that nobody but us can have made."""
        self.baton.break_off_by_bug(error)

    def _is_left_behind(self, thread: threading.Thread) -> bool:
        """True for a thread of these ranks that did not end when the execution did."""
        return any(each.thread is thread for rank in self.ranks for each in (rank.main, *rank.threads))

    def _refuse_stranger(self, me: RankThread | None) -> NoReturn:
        if self.prompt_server.is_open:
            raise UsageError(
                "what was typed in a debugger communicates, or waits, and no rank goes on meanwhile, expected a look "
                "at what is there: let the rank do it by itself, with n, s or c"
            )
        if self.baton.has_ended and not self._is_left_behind(threading.current_thread()):
            raise UsageError(
                "a process group, store or work of a run that is over, expected this run's: make it anew in each run, "
                "or run with isolation='process'"
            )
        if me is None or self.is_unwinding(me):
            self._unwind()
        error = UsageError(
            f"thread {threading.current_thread().name!r} communicates while rank {me.rank} runs, expected only "
            "threads that ranks start by threading.Thread or an executor: call from one of those"
        )
        self.kernel.run.life.break_off(error, me.rank)  # raised there it would be lost with the thread
        raise error
