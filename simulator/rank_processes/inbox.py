"""The queue of a rank's messages that are not handled yet, and the calls of ranks whose data has not moved yet."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from ddpsim.simulator.calls import Call, Signature
from ddpsim.simulator.kernel.answers import Move
from ddpsim.simulator.kernel.requests import Moved
from ddpsim.simulator.rank_processes.children import Child
from ddpsim.simulator.rank_processes.completions import Completions
from ddpsim.simulator.rank_processes.debugger_messages import DebuggerMessage
from ddpsim.simulator.rank_processes.messages import (
    Ask,
    AwaitTurn,
    CountTasks,
    Ended,
    Exits,
    Message,
    Outcome,
    Say,
    Watch,
    Written,
)
from ddpsim.simulator.rank_processes.parcels import Parcel, left_over
from ddpsim.simulator.transport.payload import Payload

MoveData = Callable[[Signature, Sequence[Any], Sequence[int]], Exception | None]
"""The function `move` of a transport."""

_WAITING = (Ask, Say, AwaitTurn, CountTasks, Watch)
"""The messages after which a rank waits for an answer."""


class Entry:
    """A message in a queue."""

    __slots__ = ("is_answered", "message", "written")

    def __init__(self, message: Message | None, written: Written, *, is_answered: bool = False) -> None:
        self.message = message
        """The message; None for the beginning of the rank."""
        self.written = written
        self.is_answered = is_answered
        """True if the rank has received its answer before the kernel has given it."""


class Inbox:
    """The message queue of one rank."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.completions = Completions()
        self.last_posted = 0
        """The handle of the rank's latest call in the kernel."""
        self.entries: deque[Entry] = deque()
        """The messages in the order of sending."""
        self.debugger: deque[DebuggerMessage] = deque()
        """The messages of a debugger in the rank, which are served at once."""
        self.handled: Entry | None = Entry(None, Written(0, 0))
        """The message that the kernel serves, until its last answer."""
        self.is_gone = False
        """The process has ended; its earlier messages are still served."""
        self.ran_too_far = False
        """The rank has computed past the point where the run stops: its messages are dropped until it leaves."""

    def read(self) -> None:
        """Read the messages that have arrived, or notice that the channel is closed."""
        channel = self.child.channel
        try:
            channel.read()
        except EOFError:
            self.is_gone = True
        while (received := channel.take()) is not None:
            message, written = received
            if isinstance(message, Ended):
                self.child.ended = message
            elif isinstance(message, Exits):
                self.child.exited_at = message.site
            elif isinstance(message, DebuggerMessage):
                self.debugger.append(message)
            else:
                self.entries.append(Entry(message, written))

    def unanswered(self) -> Entry | None:
        """Return the message that the rank waits for an answer to; None if it waits for none."""
        entry = self.entries[-1] if self.entries else self.handled
        if entry is None or entry.is_answered or not (entry.message is None or isinstance(entry.message, _WAITING)):
            return None
        return entry

    @property
    def is_lost(self) -> bool:
        """True if the rank's process is gone, and none of its messages is left to handle."""
        return self.is_gone and not self.entries and (self.handled is None or not self.handled.is_answered)

    def forward_output(self, until: Written | None = None) -> None:
        """Copy the rank's output to the caller's own streams, all of it or up to `until`."""
        if self.ran_too_far:
            self.child.skip_output(until or Written(0, 0))
            return
        for stream, text in zip((sys.stdout, sys.stderr), self.child.new_output(until), strict=True):
            if text and not stream.closed:
                encoding = stream.encoding or "utf-8"
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                stream.flush()

    def answer(self, value: object) -> None:
        """Send a value to the rank."""
        with suppress(OSError):  # the rank is gone, which is noticed when its next message is read
            self.child.channel.send(value)


class _Posted:
    """A call that a rank has made, in the form that a transport needs."""

    __slots__ = ("call", "parcel", "payload")

    def __init__(self, call: Call, parcel: Parcel) -> None:
        self.call = call
        self.parcel = parcel
        self.payload: Payload | None = None
        """The tensors in shared memory, set while they are moved."""


class PostedCalls:
    """The calls of all ranks whose data has not moved yet."""

    def __init__(self, inboxes: Sequence[Inbox], move_data: MoveData) -> None:
        self._inboxes = inboxes
        self._move_data = move_data
        self._posted: dict[tuple[int, int], _Posted] = {}
        """The calls by rank and handle."""

    def add(self, rank: int, handle: int, call: Call, parcel: Parcel) -> None:
        """Record a call that a rank has made."""
        self._posted[rank, handle] = _Posted(call, parcel)
        self._inboxes[rank].last_posted = handle

    def move(self, move: Move) -> Moved:
        """Move the data of a complete call, and record the result for each rank."""
        posted = [self._posted.pop(name) for name in move.calls]
        for (rank, _), each in zip(move.calls, posted, strict=True):
            each.payload = self._inboxes[rank].child.arena.unpack(each.parcel)
        error = self._move_data(move.signature, posted, move.members)
        first = posted[0].call
        is_message = first.peer is not None
        for (rank, handle), each in zip(move.calls, posted, strict=True):
            assert each.payload is not None
            outcome = Outcome(
                error and copy(error),
                first.rank if is_message else None,
                move.members if is_message else (),
                left_over(each.payload),
            )
            self._inboxes[rank].completions.add(handle, outcome)
        return Moved(None if error is None else str(error))
