"""Runs ranks as threads: it passes their requests to the kernel and carries out the answers.

Exactly one thread runs at a time: the one that has the baton. A rank gives the baton away only inside a request (such
as `begin_call` or `wait_for_calls`) or at its end. The kernel runs on the thread that asks. So there is no scheduler
thread, and a context switch costs one lock release and one acquire.

Prior art: CHESS, Loom, Shuttle and Coyote serialize the threads of a program in the same way. They switch at locks,
atomics or tasks; a rank switches mainly at communication calls. Refused: greenlets, as gevent uses them (torch and
Python keep grad mode, autocast and context variables per thread, and C++ code in a rank's stack cannot be switched);
only one process per rank (a switch then crosses processes; `simulator/rank_processes` offers it for isolation).
"""

import sys
import threading
from _thread import allocate_lock as _allocate_lock
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from os import getpid as _getpid  # a rank's program gets a number of its own from os.getpid
from threading import get_ident as _thread_ident
from typing import Any, NoReturn

from ddpsim.simulator.accesses import Access, Accesses, AccessMode
from ddpsim.simulator.calls import Signature
from ddpsim.simulator.errors import InjectedCrashError, UsageError
from ddpsim.simulator.faults import Crash
from ddpsim.simulator.kernel import answers
from ddpsim.simulator.kernel import requests as ask
from ddpsim.simulator.kernel.answers import GO_ON, Answer, Continue, DeliverCompletion, MoveTensors, SwitchTask
from ddpsim.simulator.kernel.requests import BeginCall, IssueCall, Reply, Request, WaitFor
from ddpsim.simulator.kernel.states import RunPhase, TaskChange
from ddpsim.simulator.matching.slots import call_object
from ddpsim.simulator.runtime.baton import Baton, stack_of_thread
from ddpsim.simulator.runtime.host import CallWatch
from ddpsim.simulator.runtime.isolation.world import watch_world
from ddpsim.simulator.runtime.kernel_port import KernelInterface
from ddpsim.simulator.runtime.leaving import may_catch_errors
from ddpsim.simulator.runtime.paths import PathRecorder
from ddpsim.simulator.runtime.prompt_server import PromptServer
from ddpsim.simulator.runtime.rank_thread import (
    PendingCall,
    RankReturned,
    RankThread,
    RankUnwound,
    ThreadedRank,
    is_tried,
    make_call_error,
)
from ddpsim.simulator.runtime.threads import RankThreads
from ddpsim.simulator.waits import CallWait

_MOST_UNWINDS = 1_000
"""How often a program may catch RankUnwound, which ends it early, before the program is abandoned."""

_RUNNING = RunPhase.RUNNING  # faster to look up, see scheduler.py
_new = tuple.__new__
"""Makes a request object in half the time of its class; used for the three requests that each call makes."""
_DELIVERED = ask.DeliveredCompletion()
_MOVED = ask.MovedTensors()

MoveData = Callable[[Signature, Sequence[PendingCall], Sequence[int]], Exception | None]
"""Moves the data of matched calls: (signature, the calls, the ranks of the group) -> the error, if any."""


class ThreadHost:
    """Runs the ranks of one simulation as threads."""

    def __init__(
        self,
        kernel: KernelInterface,
        world_size: int,
        body: Callable[[RankThread], None],
        *,
        switch: Callable[[int | None, int | None], None],
        move_data: MoveData,
        hazards: CallWatch,
        enter_thread: Callable[[], object],
        owns_modules: bool = False,
        follows: bool = False,
    ) -> None:
        """`body` runs on each rank's thread; `switch` swaps the process state, such as `os.environ`, between ranks.

        `owns_modules`: the rank has its own process, so locks made while it imports its own modules belong to it.
        `follows`: the lines that the ranks run are recorded.
        """
        self.kernel = kernel
        self.hazards = hazards
        self.ranks = [ThreadedRank(record, body) for record in kernel.run.ranks]
        self.world_size = world_size
        self.threads = RankThreads(self, enter_thread, owns_modules=owns_modules)
        self.is_observed = kernel.run.is_observed
        """True if an exploration of schedules records what each step reads and writes."""
        self.baton = Baton(kernel, self.ranks, switch)
        self.prompt_server = PromptServer(self.baton.over.release)
        self.paths = PathRecorder(lambda: self.baton.running, kernel.handle) if follows else None
        """Records the lines that ranks run, when a failed execution is repeated."""
        self._move_data = move_data
        self._process = _getpid()
        self._unwinds: Counter[int] = Counter()
        """By thread ident, how often RankUnwound was raised in the thread to end it early."""

    @property
    def is_stopping(self) -> bool:
        """True once the run has ended and every thread is being ended early."""
        return self.kernel.run.life.phase is not _RUNNING

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return self.kernel.run.steps

    # --- requests of the running rank ---------------------------------------------------------------------------------

    @property
    def running_thread(self) -> RankThread:
        """The running thread of a rank."""
        running = self.baton.running
        if running is None:
            raise RankUnwound
        return running

    def is_rank_thread(self) -> bool:
        """True on the running thread of a rank. False in a process forked from it, which has a copy of that thread."""
        running = self.baton.running
        return running is not None and running.asker == _thread_ident() and _getpid() == self._process

    def is_unwinding(self, me: RankThread) -> bool:
        """True if a thread is being ended early."""
        return self.kernel.is_unwinding(me.task)

    def send_request(self, request: Request) -> Any:
        """Pass a request of the running thread to the kernel, do what its answers ask for, and return the last answer's
        value."""
        me = self.baton.running
        if me is None or me.asker != _thread_ident():
            self._reject_caller(me)
        answer = self.kernel.handle(request)
        return answer.value if type(answer) is Continue else self._carry_out_answers(me, answer)

    def report_shared_access(self, access: Access) -> None:
        """Report to the exploration of schedules, if there is one, that the caller reads or changes what the threads of
        its rank share. Nobody else can tell, so it is nothing for a rank that never had a second thread."""
        if self.is_observed and self.is_rank_thread() and self.running_thread.of.has_started_threads:
            self.send_request(ask.ReportAccesses((access,)))

    def _carry_out_answers(self, me: RankThread, answer: Answer) -> Any:
        """Do what the kernel's answers ask for, until the request is done."""
        kernel = self.kernel
        while True:
            if type(answer) is SwitchTask:
                self.baton.pass_to_thread(me, answer.to)
                me.baton.acquire()  # as me.sleep() does it
                if me.visit is not None:
                    me.run_visits()
                if kernel.run.life.phase is not _RUNNING:
                    me.record_run_end()
                answer = kernel.resume_task(me.task)
            elif type(answer) is Continue:
                return answer.value
            elif type(answer) is DeliverCompletion:
                self._deliver_completion(me, answer.handle)
                answer = kernel.reply(_DELIVERED)
            elif isinstance(
                answer, (MoveTensors, answers.FailCalls, answers.ReportStack, answers.AwaitExternalThreads)
            ):
                answer = kernel.reply(self._carry_out_and_reply(me, answer))
            else:
                self._raise_answer(me, answer)

    def begin_call(self, intent: Accesses) -> RankThread:
        """Let other ranks run before a call, then return the running thread. An injected fault strikes here."""
        me = self.baton.running
        if me is None or me.asker != _thread_ident():
            self._reject_caller(me)
        answer = self.kernel.handle(_new(BeginCall, (intent,)))
        if answer is not GO_ON:
            self._carry_out_answers(me, answer)
        return me

    def issue_call(self, pending: PendingCall) -> None:
        """Issue a call of the running thread."""
        me = self.baton.running
        assert me is not None, "begin_call returned it"
        me.of.pending[pending.handle] = pending
        self.hazards.call_issued(pending)
        if self.paths is not None:
            self.paths.send_steps(pending.call)
        answer = self.kernel.handle(_new(IssueCall, (pending.handle, pending.call)))
        if answer is not GO_ON:
            self._carry_out_answers(me, answer)

    def wait_for_calls(self, pendings: Sequence[PendingCall], timeout_seconds: float | None = None) -> bool:
        """Wait until a call is complete, and run callbacks of complete calls. False if the time-out passed first."""
        me = self.baton.running
        if me is None or me.asker != _thread_ident():
            self._reject_caller(me)
        if pendings[0].owner is not me.of:
            return self._wait_for_calls_of_other_rank(pendings, timeout_seconds)
        handles = (pendings[0].handle,) if len(pendings) == 1 else tuple([each.handle for each in pendings])
        is_done = bool(self._carry_out_answers(me, self.kernel.handle(_new(WaitFor, (handles, timeout_seconds)))))
        for pending in pendings:
            if pending.error is not None and is_tried(pending.error) and not may_catch_errors(sys._getframe()):
                self.send_request(ask.ProgramRaised(ask.RankError("", "", None)))  # unwinds: the deadlock is reported
        return is_done

    def _wait_for_calls_of_other_rank(self, pendings: Sequence[PendingCall], timeout_seconds: float | None) -> bool:
        """Wait for calls of another rank, whose work handles the program has got hold of. No callbacks run for them."""
        self.send_request(ask.Checkpoint())
        if any(pending.is_complete for pending in pendings):
            return True
        return bool(
            self.send_request(ask.Block(CallWait(tuple([pending.call for pending in pendings])), timeout_seconds))
        )

    def watch_completion(self, pending: PendingCall) -> None:
        """Note that the program will depend on a call's completion, so it matters when the call's callbacks run."""
        if not self.is_rank_thread() or pending.owner is not self.running_thread.of or pending.is_complete:
            return
        if self.kernel.watch_completion(pending.handle):
            self._deliver_completion(self.running_thread, pending.handle)

    def is_complete(self, pending: PendingCall, *, is_blind: bool = False) -> bool:
        """Return whether a call is complete. If not, return False after other ranks have run."""
        look = Access(call_object(pending.call), AccessMode.READ)
        if pending.owner is self.running_thread.of:
            self.send_request(ask.IsComplete(pending.handle, look, is_blind))
        else:  # another rank's call, which the program has a reference to
            self.send_request(ask.Checkpoint((look,)) if pending.is_complete else ask.Poll((look,)))
        return pending.is_complete

    def finish_thread(self, me: RankThread, how: TaskChange) -> None:
        """Let another thread run, as the last call on a rank's thread. If this raises RankUnwound, it is still the
        caller's turn, and the caller has to call again."""
        if me.is_abandoned:
            return
        try:
            successor = self._next_thread_after(me, how)
            if me.exit.claim_end():
                self.baton.pass_to_thread(me, successor)
        except Exception as error:  # the watcher of the run (threaded_run.py) then takes the baton from this thread
            self.abort_run_by_bug(error)

    # --- carrying out answers -----------------------------------------------------------------------------------------

    def _deliver_completion(self, me: RankThread, handle: int) -> None:
        pending = me.of.pending.pop(handle)
        pending.is_delivered = True
        try:
            for callback in pending.when_delivered:
                callback()
        except BaseException:
            self.kernel.drop_request()
            raise
        pending.payload = None  # these two refer to tensors and to the work handle
        pending.when_delivered.clear()

    def _carry_out_and_reply(
        self,
        me: RankThread,
        answer: MoveTensors | answers.FailCalls | answers.ReportStack | answers.AwaitExternalThreads,
    ) -> Reply:
        try:
            if isinstance(answer, MoveTensors):
                return self._move_data_of_calls(answer)
            if isinstance(answer, answers.FailCalls):
                for rank, handle in answer.calls:
                    pending = self.ranks[rank].pending[handle]
                    pending.is_complete, pending.error = True, make_call_error(answer.failure)
                return _MOVED
            return (
                stack_of_thread(me)
                if isinstance(answer, answers.ReportStack)
                else ask.AwaitedExternalThreads(self._await_external_threads(me))
            )
        except BaseException:
            self.kernel.drop_request()
            raise

    def _move_data_of_calls(self, move: MoveTensors) -> ask.MovedTensors:
        pendings = [self.ranks[rank].pending[handle] for rank, handle in move.calls]
        if pendings[0].call.peer is None:
            self.hazards.collective_matched(pendings)
        else:
            pendings[1].source, pendings[1].members = pendings[0].call.rank, move.members
        steps = self.threads.steps
        steps.is_untracked = True  # a transport may have threads and locks of its own
        try:
            error = self._move_data(move.signature, pendings, move.members)
        finally:
            steps.is_untracked = False
        for pending in pendings:
            pending.is_complete = True
            pending.error = error and copy(error)  # a copy for each call: raising it adds frames
            if pending.when_moved is not None:
                pending.when_moved()
        return _MOVED if error is None else ask.MovedTensors(str(error))

    def _await_external_threads(self, me: RankThread) -> bool:
        try:
            return self.threads.steps.await_external_threads()
        except Exception as error:  # a bug of ddpsim must not leave the ranks asleep
            self.abort_run_by_bug(error)
            return False

    def _raise_answer(self, me: RankThread, answer: Any) -> NoReturn:
        if isinstance(answer, answers.RaiseFault):
            fault = answer.fault
            me.fault = (
                InjectedCrashError(f"{fault.message} (rank {me.rank}, before call {answer.call_number})")
                if isinstance(fault, Crash)
                else RankReturned()
            )
            raise me.fault
        if isinstance(answer, answers.RejectRequest):
            kinds = {"TimeoutError": TimeoutError, "ConnectionError": ConnectionError}
            raise kinds.get(answer.kind, ValueError)(answer.text)
        self._unwind_caller()

    # --- the ends of threads ------------------------------------------------------------------------------------------

    def start_thread(self, child: RankThread) -> None:
        """Tell the kernel that the running thread has started another one.

        The host records the new thread first: after an interrupt in between, the kernel may let it run only to end it.
        """
        number = self.kernel.run.started
        self.baton.started[number] = child
        self.send_request(ask.StartThread(child.name, child.is_daemon))
        self.connect_task(child)

    def connect_task(self, child: RankThread) -> None:
        """Give a started thread its task (the kernel's record of a thread); the thread itself may call this first."""
        if not child.has_task:
            number = next(number for number, thread in self.baton.started.items() if thread is child)
            child.connect_task(self.kernel.run.tasks[number])
            if self.is_observed and not child.of.has_started_threads:
                watch_world(child.rank, self.report_shared_access)
            child.of.has_started_threads = True
            child.of.threads.append(child)

    def _next_thread_after(self, me: RankThread, how: TaskChange) -> int | None:
        """Tell the kernel that a thread has ended, and return the number of the next thread, or None."""
        answer = self.kernel.handle(ask.FinishTask(how))
        while isinstance(answer, (answers.FailCalls, answers.AwaitExternalThreads)):
            answer = self.kernel.reply(self._carry_out_and_reply(me, answer))
        assert isinstance(answer, SwitchTask), f"{ask.FinishTask.__name__} was answered by {answer}"
        if not me.is_main and self.baton.started.pop(me.number, None) is not None:
            me.of.threads.remove(me)
        return answer.to

    def _unwind_caller(self) -> NoReturn:
        """End the caller's program early by raising RankUnwound.

        A thread that catches RankUnwound too often would run for ever; it is put to sleep for ever and abandoned.
        """
        ident = _thread_ident()
        running = self.baton.running
        if running is not None and running.ident == ident:
            running.record_run_end()
        self._unwinds[ident] += 1
        if self._unwinds[ident] > _MOST_UNWINDS:
            me = self.baton.running
            if me is not None and me.ident == ident and not self.is_stopping:  # the rank has ended, the run has not
                self.baton.pass_to_thread(me, self._next_thread_after(me, TaskChange.ABANDON))
            for_ever = _allocate_lock()
            for_ever.acquire()
            while True:
                for_ever.acquire()
        raise RankUnwound

    # --- errors of the machinery --------------------------------------------------------------------------------------

    def abort_run(self, error: Exception) -> None:
        """End the run with an error that is raised to the run's caller, as the rank would lose it."""
        self.kernel.run.life.abort(error, self.running_thread.rank)

    def abort_run_by_bug(self, error: Exception) -> None:
        """End the run with an error that is a bug of ddpsim."""
        self.baton.abort_run_by_bug(error)

    def _is_leftover_thread(self, thread: threading.Thread) -> bool:
        """True for a thread of a rank that still runs after the end of the run."""
        return any(each.thread is thread for rank in self.ranks for each in (rank.main, *rank.threads))

    def _reject_caller(self, me: RankThread | None) -> NoReturn:
        """Raise the error for a thread that calls although no rank may run on it now."""
        if self.prompt_server.is_open:
            raise UsageError(
                "cannot communicate or wait in a debugger command: the other ranks are paused, "
                "let the program do it with n, s or c"
            )
        if self.baton.has_ended and not self._is_leftover_thread(threading.current_thread()):
            raise UsageError(
                "this process group, store or work belongs to a run that has ended: create it anew in each run, "
                "or run with isolation='process'"
            )
        if me is None or self.is_unwinding(me):
            self._unwind_caller()
        error = UsageError(
            f"thread {threading.current_thread().name!r} communicates while rank {me.rank} runs: communicate only "
            "from threads that ranks start by threading.Thread or an executor"
        )
        self.kernel.run.life.abort(error, me.rank)  # raised only here, it would be lost with the thread
        raise error
