"""Replaces the kernel in the process of a rank: sends requests to the coordinator, and receives the answers.

The thread of the rank that asked last waits at the channel. An answer for another thread of the rank is a `SwitchTask`
for the host of threads here, as with a local kernel. The coordinator switches between ranks.

A `TurnToRun` may carry several answers: calls to deliver, and then the kernel's own answer.
"""

import signal
from collections import deque
from collections.abc import Callable
from typing import Any

from ddpsim.simulator.errors import make_internal_error
from ddpsim.simulator.kernel import answers
from ddpsim.simulator.kernel.answers import GO_ON, UNWIND, Answer, Continue, DeliverCompletion
from ddpsim.simulator.kernel.requests import UNANSWERED, FinishTask, IssueCall, Reply, Request, StartThread
from ddpsim.simulator.kernel.states import RunEnding, RunLifecycle, RunPhase, TaskState
from ddpsim.simulator.kernel.tasks import RankRecord, Task
from ddpsim.simulator.rank_processes import messages
from ddpsim.simulator.rank_processes.parcels import PackedPayload, SharedArena
from ddpsim.simulator.rank_processes.rank_channel import RankChannel, SignalBlocker
from ddpsim.simulator.runtime.isolation.virtual_time import SignalTimer
from ddpsim.simulator.runtime.rank_thread import PendingCall

_ENDING = (Continue, answers.Unwind, answers.RaiseFault, answers.RejectRequest)

UndeliveredCalls = dict[int, PendingCall]
"""The rank's calls whose results are not delivered yet, by the call's handle (id)."""


class _RemoteRunLifecycle(RunLifecycle):
    """The state of an execution as a rank's process sees it: failures here are reported to the coordinator."""

    def __init__(self, channel: RankChannel) -> None:
        super().__init__()
        self._own_channel = channel

    def abort(self, error: BaseException, under: int | None) -> None:
        self._report_failure(error, is_bug=False)

    def abort_with_internal_error(self, error: Exception, under: int | None) -> None:
        if isinstance(error, RecursionError):
            self._report_failure(error, is_bug=True)
        else:  # a traceback does not pickle, so the report contains it
            self._report_failure(make_internal_error(error, f"the process of rank {under}"), is_bug=True)

    def _report_failure(self, error: BaseException, *, is_bug: bool) -> None:
        self.failure = self.failure or error
        self.begin_stop(RunEnding.BROKEN)
        self._own_channel.send_message(messages.InternalFailure(error, is_bug))


class RemoteRun:
    """The state of the execution, as of the last answer to this rank."""

    def __init__(self, rank: int, channel: RankChannel, *, is_observed: bool) -> None:
        record = RankRecord(rank)
        self.ranks = [record]
        self.tasks = {rank: record.main}
        self.steps, self.now = 0, 0.0
        self.is_observed = is_observed
        self.life: RunLifecycle = _RemoteRunLifecycle(channel)
        self._own_channel = channel

    @property
    def started(self) -> int:
        """The number that the next started thread gets; the coordinator counts the threads of all ranks."""
        number: int = self._own_channel.exchange_messages(messages.AskTaskNumber())
        return number


class RemoteKernel:
    """Takes the place of the kernel in a rank's process: sends requests to the coordinator, and receives answers."""

    def __init__(self, channel: RankChannel, rank: int, arena: SharedArena, *, is_observed: bool) -> None:
        self.run = RemoteRun(rank, channel, is_observed=is_observed)
        self._own_channel = channel
        self._signals = SignalBlocker()
        self.timer = SignalTimer(lambda: self.run.now)
        self._arena = arena
        self._open: UndeliveredCalls = {}
        self._before_delivery: Callable[[PendingCall], None] = lambda pending: None
        self._parcels: dict[int, PackedPayload] = {}
        self._running = self.run.ranks[0].main
        self._answers: deque[Answer] = deque()
        """The unused answers of the coordinator's last message. A thread that only begins uses none."""
        self._is_final = True
        """True if the coordinator's last message ends the request in progress."""
        self.is_speculative = False
        """True if the rank may run without the baton (the right to run)."""
        self._is_interrupted = False
        """True if the rank has to leave its program at the next answer."""
        self._is_terminated = self._is_told = False
        """True if the agent ends the rank by SIGTERM, and once it has got it."""

    def attach_calls(self, calls: UndeliveredCalls, before_delivery: Callable[[PendingCall], None]) -> None:
        """Set the rank's calls, and the function to call before the tensors of a call are written."""
        self._open = calls
        self._before_delivery = before_delivery

    def await_first_turn(self) -> None:
        """Wait until the rank's program may begin, or leave at once."""
        self._accept_turn(self._own_channel.receive_message())

    def handle(self, request: Request) -> Answer:
        """Send a request of the running thread, and return the answer. The result of an issued call comes later."""
        if type(request) is IssueCall:
            pending = self._open[request.handle]
            parcel = self._parcels[request.handle] = self._arena.pack_payload(pending.payload)
            self._send_message(messages.IssueCallWithoutReply(request.handle, request.call, parcel))
            return GO_ON
        if type(request) in UNANSWERED:
            self._send_message(messages.RequestWithoutReply(request))
            return GO_ON
        if type(request) is FinishTask:
            self._running.change_state(request.how)
        answer = self._exchange_for_answer(messages.SendRequest(request))
        if type(request) is StartThread and type(answer) is Continue:
            rank, number = self.run.ranks[0], answer.value
            task = self.run.tasks[number] = Task(number, rank, request.name)
            rank.tasks.append(task)
        return answer

    def watch_completion(self, handle: int) -> bool:
        """Report that a future depends on the completion of a call. Returns whether the call is delivered already."""
        outcome = self._exchange_messages(messages.WatchCall(handle)).outcome
        if outcome is not None:
            self._accept_call_result(handle, outcome)
        return outcome is not None

    def await_turn(self) -> bool:
        """Wait until the rank has the baton (the right to run). Returns False if it has to leave its program."""
        if self.is_speculative:
            self._accept_turn(self._exchange_messages(messages.AwaitTurn()))
            return type(self._answers.popleft()) is Continue and not self._is_interrupted
        return True

    def note_interruption(self) -> bool:
        """Record that the execution has ended. Returns whether the rank may leave its program here, not later."""
        self.run.life.begin_stop(RunEnding.INTERRUPTED)
        self._is_interrupted = self._own_channel.is_in_use
        return not self._is_interrupted

    def reply(self, reply: Reply | None) -> Answer:
        """Answer a question of the kernel (scheduler) to the running thread, and continue the thread's request."""
        return self._take_answer() if self._answers else self._exchange_for_answer(messages.SendReply(reply))

    def drop_request(self) -> None:
        """Give up the running thread's request."""
        self._answers.clear()
        if not self._is_final:
            self._own_channel.send_message(messages.WithdrawRequest())
        self._signals.unblock_signals(self._running.number)

    def resume_task(self, task: Task) -> Answer:
        """Continue a thread of the rank, which has the baton (the right to run) now."""
        self._running = task
        return self._take_answer()

    def give_baton(self, number: int | None) -> None:
        """Record that a thread has been given the baton (the right to run)."""
        if number is not None:
            self._running = self.run.tasks[number]

    def is_unwinding(self, task: Task) -> bool:
        """Return whether a thread of the rank runs, or will run, only to leave the program."""
        return self.run.life.phase is not RunPhase.RUNNING or task.state is TaskState.CANCELLED

    def _exchange_for_answer(self, message: messages.SendRequest | messages.SendReply) -> Answer:
        self._signals.block_signals(self._running.number)
        turn = self._accept_turn(self._own_channel.exchange_messages(message))
        if turn.number == self._running.number:
            if turn.error is not None:
                self._signals.unblock_signals(self._running.number)
                raise turn.error
            return self._take_answer()
        return answers.SwitchTask(turn.number)

    def _take_answer(self) -> Answer:
        """Return the next answer of the coordinator; if it ends a request, unblock the program's signals."""
        answer = self._answers.popleft()
        if type(answer) in _ENDING:
            if self.run.now >= self.timer.due and self._running.is_main and type(answer) is Continue:
                self.timer.ring()
            self._signals.unblock_signals(self._running.number)
            if self._is_terminated and not self._is_told:
                self._is_told = True
                signal.raise_signal(signal.SIGTERM)
            return UNWIND if self._is_interrupted else answer
        return answer

    def _send_message(self, message: messages.RequestWithoutReply | messages.IssueCallWithoutReply) -> None:
        with self._signals.signals_blocked(self._running.number):
            self._own_channel.send_message(message)

    def _exchange_messages(self, message: messages.WatchCall | messages.AwaitTurn) -> Any:
        with self._signals.signals_blocked(self._running.number):
            return self._own_channel.exchange_messages(message)

    def _accept_turn(self, turn: messages.TurnToRun) -> messages.TurnToRun:
        self.run.steps, self.run.now = turn.steps, turn.now
        self.is_speculative, self._is_terminated = turn.is_speculative, turn.is_terminated
        if turn.is_stopping:
            self.run.life.begin_stop(RunEnding.FINISHED)
        for number, state in turn.states:
            if number in self.run.tasks:
                self.run.tasks[number].state = state
        for handle, outcome in turn.outcomes:
            self._accept_call_result(handle, outcome)
        delivered = [DeliverCompletion(handle) for handle, _ in turn.outcomes]
        self._is_final = not isinstance(turn.answer, (DeliverCompletion, answers.ReportStack))
        self._answers = deque(delivered if isinstance(turn.answer, DeliverCompletion) else [*delivered, turn.answer])
        return turn

    def _accept_call_result(self, handle: int, outcome: messages.CallResult) -> None:
        pending, parcel = self._open[handle], self._parcels.pop(handle)
        self._before_delivery(pending)
        pending.error, pending.source = outcome.error, outcome.source
        pending.members = outcome.members or pending.members  # a receive gets the members of its message
        if outcome.error is None:
            self._arena.copy_result_out(pending.payload, parcel, outcome.left)
        pending.is_complete = True
        if pending.when_moved is not None:
            pending.when_moved()
        if not self._parcels:
            self._arena.free_all()
