"""The state that the coordinator keeps for each rank: unhandled messages, results that the rank lacks, calls to move.

Note [Results that an answer carries]. A rank that speculates is answered before the kernel has reached its request, so
the results in an answer must not depend on the time of sending. If no future depends on a completion, the rank sees it
only in its tensors, which it may use again after the wait. So an answer to a wait carries the results that the rank
waited for, and all that were complete before them. An answer before a call carries none. Other answers are sent only
while the rank has the baton, and carry all that the kernel would have delivered by then. If a future that the program
can see depends on a completion, the result is delivered where the kernel says, and until then the rank does not
speculate.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from ddpsim.simulator.calls import Call, Signature
from ddpsim.simulator.kernel import requests
from ddpsim.simulator.kernel.answers import Answer, Continue, DeliverCompletion, FailCalls, MoveTensors
from ddpsim.simulator.kernel.requests import MovedTensors, WaitFor
from ddpsim.simulator.rank_processes import messages
from ddpsim.simulator.rank_processes.children import ChildProcess
from ddpsim.simulator.rank_processes.parcels import PackedPayload, outputs_outside_arena
from ddpsim.simulator.runtime.rank_thread import make_call_error
from ddpsim.simulator.transport.modes import suspend_modes
from ddpsim.simulator.transport.payload import Payload

MoveData = Callable[[Signature, Sequence[Any], Sequence[int]], Exception | None]
"""The type of a transport's function `move`, which moves the data of a call."""

_WAITING = (messages.SendRequest, messages.SendReply, messages.AwaitTurn, messages.AskTaskNumber, messages.WatchCall)
"""The types of messages after which a rank waits for an answer."""


@dataclass(slots=True, eq=False)
class QueuedMessage:
    """A message of a rank in the coordinator's queue."""

    message: NamedTuple | None
    """The message (messages.py); None marks the beginning of the rank's program."""
    written: messages.WrittenBytes
    is_answered: bool = False
    """True if the rank has already been sent the answer, before the kernel (the scheduler) handled the message."""


class RankInbox:
    """The queue of one rank's messages in the coordinator."""

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self.completions = UnsentResults()
        self.last_posted = 0
        """The handle (id) of the rank's latest call in the kernel."""
        self.entries: deque[QueuedMessage] = deque()
        self.debugger: deque[messages.DebuggerMessage] = deque()
        """The messages of a debugger in the rank, which are handled at once."""
        self.handled: QueuedMessage | None = QueuedMessage(None, messages.WrittenBytes(0, 0))
        """The message that the kernel (the scheduler) is handling, until its last answer to the message."""
        self.is_gone = False
        """True if the rank's process has ended; its earlier messages are still handled."""
        self.ran_too_far = False
        """True if the rank has run past the point where the run stops: its messages are dropped until it leaves."""

    def read_messages(self) -> None:
        """Read the messages that have arrived, or notice that the channel is closed."""
        channel = self.child.channel
        try:
            channel.read_bytes()
        except EOFError:
            self.is_gone = True
        while (received := channel.take_message()) is not None:
            message, written = received
            if isinstance(message, messages.RankEnded):
                self.child.ended = message
            elif isinstance(message, messages.OsExitReport):
                self.child.exited_at = message.site
            elif isinstance(message, messages.DebuggerMessage):
                self.debugger.append(message)
            else:
                self.entries.append(QueuedMessage(message, written))

    def unanswered_message(self) -> QueuedMessage | None:
        """Return the message to which the rank waits for an answer; None if it waits for none."""
        entry = self.entries[-1] if self.entries else self.handled
        if entry is None or entry.is_answered or not (entry.message is None or isinstance(entry.message, _WAITING)):
            return None
        return entry

    @property
    def is_lost(self) -> bool:
        """True if the rank's process is gone, and none of its messages is left to handle."""
        return self.is_gone and not self.entries and (self.handled is None or not self.handled.is_answered)

    def forward_output(self, until: messages.WrittenBytes | None = None) -> None:
        """Copy the rank's output to the caller's own streams, all of it or up to the byte counts `until`."""
        if self.ran_too_far:
            self.child.skip_output(until or messages.WrittenBytes(0, 0))
            return
        for stream, text in zip((sys.stdout, sys.stderr), self.child.new_output(until), strict=True):
            if text and not stream.closed:
                encoding = stream.encoding or "utf-8"
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                stream.flush()

    def send_to_rank(self, value: object) -> None:
        """Send a value to the rank."""
        with suppress(OSError):  # the rank is gone, which is noticed when its next message is read
            self.child.channel.send(value)


@dataclass(slots=True, eq=False)
class _PostedCall:
    """A call that a rank has made, as the transport (the code that moves the data) needs it."""

    call: Call
    parcel: PackedPayload
    payload: Payload | None = None
    """The tensors in shared memory, set while they are moved."""


class PostedCalls:
    """The calls of all ranks whose data has not moved yet."""

    def __init__(self, inboxes: Sequence[RankInbox], move_data: MoveData) -> None:
        self._inboxes = inboxes
        self._move_data = move_data
        self._posted: dict[tuple[int, int], _PostedCall] = {}
        """The calls, by rank and by handle (the id of a call)."""

    def add_call(self, rank: int, handle: int, call: Call, parcel: PackedPayload) -> None:
        """Record a call that a rank has made."""
        self._posted[rank, handle] = _PostedCall(call, parcel)
        self._inboxes[rank].last_posted = handle

    def complete_calls(self, answer: MoveTensors | FailCalls) -> MovedTensors:
        """Complete calls: move their data, or let them fail. Record the result for each rank."""
        if isinstance(answer, MoveTensors):
            return self._move_call_data(answer)
        for rank, handle in answer.calls:
            del self._posted[rank, handle]
            outcome = messages.CallResult(make_call_error(answer.failure), None, ())
            self._inboxes[rank].completions.outcomes[handle] = outcome
        return MovedTensors()

    def _move_call_data(self, move: MoveTensors) -> MovedTensors:
        posted = [self._posted.pop(name) for name in move.calls]
        for (rank, _), each in zip(move.calls, posted, strict=True):
            each.payload = self._inboxes[rank].child.arena.unpack_payload(each.parcel)
        with suspend_modes():  # of the program that called `simulate`
            error = self._move_data(move.signature, posted, move.members)
        first = posted[0].call
        source, members = (None, ()) if first.peer is None else (first.rank, move.members)
        for (rank, handle), each in zip(move.calls, posted, strict=True):
            assert each.payload is not None
            outcome = messages.CallResult(error and copy(error), source, members, outputs_outside_arena(each.payload))
            self._inboxes[rank].completions.outcomes[handle] = outcome
        return MovedTensors(None if error is None else str(error))


Known = tuple[tuple[int, messages.CallResult], ...]
"""The results that are sent with an answer to a rank, by the handle (id) of the call."""

_IN_TURN = (requests.Poll, requests.Sleep, requests.IsComplete, requests.Block, requests.StoreOperation)
"""The requests that are answered only while the rank has the baton (the right to run); results of calls come along."""

_ALSO_BEFORE = (requests.BeginCall, requests.Checkpoint, WaitFor)
"""The requests that may also be answered before the rank has the baton (the right to run)."""


class UnsentResults:
    """The results of calls that one rank has not received yet."""

    def __init__(self) -> None:
        self.outcomes: dict[int, messages.CallResult] = {}
        """The results that the rank has not received, by the call's handle (id), in the order of completion."""
        self._deliverable: set[int] = set()
        """The handles (ids) of the calls whose results the kernel would have delivered by now."""
        self.watched: set[int] = set()
        """The handles (ids) of undelivered calls on which a future depends."""

    def watch_call(self, handle: int) -> messages.CallResult | None:
        """Record that a future depends on a call now; return the call's result if it has been delivered, else None."""
        if handle in self._deliverable:
            self._deliverable.remove(handle)
            return self.outcomes.pop(handle)
        self.watched.add(handle)
        return None

    def postpone_delivery(self, handle: int) -> None:
        """Record that the kernel delivers a call: the result goes with a later answer, unless the rank has it."""
        if handle in self.outcomes:
            self._deliverable.add(handle)

    def take_for_answer(self, answer: Answer, message: NamedTuple | None, *, by_turns: bool) -> Known:
        """Return the results to send with an answer to a message; `by_turns`: the rank never computes ahead."""
        if isinstance(answer, DeliverCompletion):
            return (*self.take_all_deliverable(), *self._take_results([answer.handle]))
        if message is None or isinstance(message, messages.SendReply):
            return self.take_all_deliverable()
        request = message.request if isinstance(message, messages.SendRequest) else None
        if isinstance(request, _IN_TURN):
            return self.take_all_deliverable()
        if self.watched or by_turns:
            return self.take_all_deliverable() if isinstance(request, _ALSO_BEFORE) else ()
        if not isinstance(request, WaitFor):
            return ()
        is_in_time = isinstance(answer, Continue) and answer.value
        return self.take_results_up_to(request.handles) if is_in_time else self.take_all_deliverable()

    def take_all_deliverable(self) -> Known:
        """Return all results that the kernel (the scheduler) would have delivered by now."""
        return self._take_results([handle for handle in self.outcomes if handle in self._deliverable])

    def take_results_up_to(self, waited: Sequence[int]) -> Known:
        """Return the results of the calls that a rank waited for, and all results that were complete before them."""
        known = list(self.outcomes)
        last = max((known.index(handle) for handle in waited if handle in self.outcomes), default=-1)
        return self._take_results(known[: last + 1])

    def _take_results(self, handles: Iterable[int]) -> Known:
        taken = []
        for handle in handles:
            self._deliverable.discard(handle)
            self.watched.discard(handle)
            taken.append((handle, self.outcomes.pop(handle)))
        return tuple(taken)
