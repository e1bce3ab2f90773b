"""Replaces the kernel in the process of a rank: sends requests to the coordinator, and receives the answers.

The thread of the rank that asked last waits at the channel. An answer for another thread of the rank is a `Switch` for
the host of threads here, as with a local kernel. The coordinator switches between ranks.

A `Turn` may carry several answers: calls to deliver, and then the kernel's own answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ddpsim.simulator.errors import internal_error
from ddpsim.simulator.kernel.answers import (
    GO_ON,
    UNWIND,
    Answer,
    Deliver,
    GoOn,
    Refuse,
    Strike,
    Switch,
    TellStack,
    Unwind,
)
from ddpsim.simulator.kernel.requests import UNANSWERED, Finish, Issue, Reply, Request, StartThread
from ddpsim.simulator.kernel.states import Ending, Life, Phase, State
from ddpsim.simulator.kernel.tasks import RankRecord, Task
from ddpsim.simulator.rank_processes import messages
from ddpsim.simulator.rank_processes.parcels import Arena, Parcel
from ddpsim.simulator.rank_processes.rank_channel import RankChannel, Signals
from ddpsim.simulator.runtime.host import Pending

_ENDING = (GoOn, Unwind, Strike, Refuse)

Open = dict[int, Pending]
"""The rank's calls that are not delivered, by handle."""


class _Life(Life):
    """The life of an execution as its rank sees it: failures here are reported to the coordinator."""

    def __init__(self, channel: RankChannel) -> None:
        super().__init__()
        self._own_channel = channel

    def break_off(self, error: BaseException, under: int | None) -> None:
        self._break(error, is_bug=False)

    def break_off_by_bug(self, error: Exception, under: int | None) -> None:
        if isinstance(error, RecursionError):
            self._break(error, is_bug=True)
        else:  # a traceback does not pickle, so the report contains it
            self._break(internal_error(error, f"the process of rank {under}"), is_bug=True)

    def _break(self, error: BaseException, *, is_bug: bool) -> None:
        self.failure = self.failure or error
        self.stop(Ending.BROKEN)
        self._own_channel.send(messages.Broke(error, is_bug))


class RemoteRun:
    """The state of the execution at the last answer."""

    def __init__(self, rank: int, channel: RankChannel, *, is_observed: bool) -> None:
        record = RankRecord(rank)
        self.ranks = [record]
        self.tasks = {rank: record.main}
        self.steps = 0
        self.is_observed = is_observed
        self.life: Life = _Life(channel)
        self._own_channel = channel

    @property
    def started(self) -> int:
        """The number of the next task, from the coordinator, because it counts the tasks of all ranks."""
        number: int = self._own_channel.exchange(messages.CountTasks())
        return number


class RemoteKernel:
    """Takes the place of the kernel in a rank's process: sends requests to the coordinator, and receives answers."""

    def __init__(self, channel: RankChannel, rank: int, arena: Arena, *, is_observed: bool) -> None:
        self.run = RemoteRun(rank, channel, is_observed=is_observed)
        self._own_channel = channel
        self._signals = Signals()
        self._arena = arena
        self._open: Open = {}
        self._before_delivery: Callable[[Pending], None] = lambda pending: None
        self._parcels: dict[int, Parcel] = {}
        self._running = self.run.ranks[0].main
        self._answers: deque[Answer] = deque()
        """The answers of the last turn that are not used yet. A thread that only begins uses none."""
        self._is_final = True
        """True if the last turn ends its request."""
        self.is_speculative = False
        """True if the rank may run without the baton (the right to run)."""
        self._is_interrupted = False
        """True if the rank has to leave its program at the next answer."""

    def attach(self, calls: Open, before_delivery: Callable[[Pending], None]) -> None:
        """Set the rank's calls, and the function to call before the tensors of a call are written."""
        self._open = calls
        self._before_delivery = before_delivery

    def await_first_turn(self) -> None:
        """Wait until the rank's program may begin, or leave at once."""
        self._heed(self._own_channel.receive())

    def handle(self, request: Request) -> Answer:
        """Serve a request of the running thread. The result of an issued call comes with a later answer."""
        if type(request) is Issue:
            pending = self._open[request.handle]
            parcel = self._parcels[request.handle] = self._arena.pack(pending.payload)
            self._tell(messages.Post(request.handle, request.call, parcel))
            return GO_ON
        if type(request) in UNANSWERED:
            self._tell(messages.Tell(request))
            return GO_ON
        if type(request) is Finish:
            self._running.change(request.how)
        answer = self._next(messages.Ask(request))
        if type(request) is StartThread and type(answer) is GoOn:
            rank, number = self.run.ranks[0], answer.value
            task = self.run.tasks[number] = Task(number, rank, request.name)
            rank.tasks.append(task)
        return answer

    def watch(self, handle: int) -> bool:
        """Report that a future depends on the completion of a call. Returns whether the call is already delivered."""
        outcome = self._exchange(messages.Watch(handle)).outcome
        if outcome is not None:
            self._take(handle, outcome)
        return outcome is not None

    def await_turn(self) -> bool:
        """Wait until the rank has the baton (the right to run). Returns False if it has to leave its program."""
        if self.is_speculative:
            self._heed(self._exchange(messages.AwaitTurn()))
            return type(self._answers.popleft()) is GoOn and not self._is_interrupted
        return True

    def interrupt(self) -> bool:
        """Note that the execution has ended. Returns whether the rank may leave its program here.

        During an exchange the rank leaves with its answer instead.
        """
        self.run.life.stop(Ending.INTERRUPTED)
        self._is_interrupted = self._own_channel.is_in_use
        return not self._is_interrupted

    def reply(self, reply: Reply | None) -> Answer:
        """Continue the request of the running thread."""
        return self._taken() if self._answers else self._next(messages.Say(reply))

    def drop(self) -> None:
        """Give up the running thread's request."""
        self._answers.clear()
        if not self._is_final:
            self._own_channel.send(messages.GiveUpRequest())
        self._signals.let_in(self._running.number)

    def resume(self, task: Task) -> Answer:
        """Resume a thread of the rank, which has the baton (the right to run) now."""
        self._running = task
        return self._taken()

    def give_baton(self, number: int | None) -> None:
        """Note that the host has given the baton (the right to run) to a thread."""
        if number is not None:
            self._running = self.run.tasks[number]

    def is_unwinding(self, task: Task) -> bool:
        """Return whether a task runs, or will run, only to leave its program."""
        return self.run.life.phase is not Phase.RUNNING or task.state is State.CANCELLED

    def _next(self, message: messages.Ask | messages.Say) -> Answer:
        self._signals.hold_back(self._running.number)
        turn = self._heed(self._own_channel.exchange(message))
        if turn.number == self._running.number:
            if turn.error is not None:
                self._signals.let_in(self._running.number)
                raise turn.error
            return self._taken()
        return Switch(turn.number)

    def _taken(self) -> Answer:
        """Return the next answer; one that ends a request unblocks the program's signals."""
        answer = self._answers.popleft()
        if type(answer) in _ENDING:
            self._signals.let_in(self._running.number)
            return UNWIND if self._is_interrupted else answer
        return answer

    def _tell(self, message: messages.Tell | messages.Post) -> None:
        with self._signals.held_back(self._running.number):
            self._own_channel.send(message)

    def _exchange(self, message: messages.Watch | messages.AwaitTurn) -> Any:
        with self._signals.held_back(self._running.number):
            return self._own_channel.exchange(message)

    def _heed(self, turn: messages.Turn) -> messages.Turn:
        self.run.steps = turn.steps
        self.is_speculative = turn.is_speculative
        if turn.is_stopping:
            self.run.life.stop(Ending.FINISHED)
        for number, state in turn.states:
            if number in self.run.tasks:
                self.run.tasks[number].state = state
        for handle, outcome in turn.outcomes:
            self._take(handle, outcome)
        delivered = [Deliver(handle) for handle, _ in turn.outcomes]
        self._is_final = not isinstance(turn.answer, (Deliver, TellStack))
        self._answers = deque(delivered if isinstance(turn.answer, Deliver) else [*delivered, turn.answer])
        return turn

    def _take(self, handle: int, outcome: messages.Outcome) -> None:
        pending, parcel = self._open[handle], self._parcels.pop(handle)
        self._before_delivery(pending)
        pending.error, pending.source, pending.members = outcome.error, outcome.source, outcome.members
        if outcome.error is None:
            self._arena.take(pending.payload, parcel, outcome.left)
        pending.is_complete = True
        if pending.when_moved is not None:
            pending.when_moved()
        if not self._parcels:
            self._arena.clear()
