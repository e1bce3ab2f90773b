"""The queue of a rank's messages that are not handled yet."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress

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
    Say,
    Watch,
    Written,
)

_WAITING = (Ask, Say, AwaitTurn, CountTasks, Watch)
"""After these a rank waits for an answer."""


class Entry:
    """A message, and how far it is handled."""

    __slots__ = ("is_answered", "message", "written")

    def __init__(self, message: Message | None, written: Written, *, is_answered: bool = False) -> None:
        self.message = message
        """None stands for the beginning of the rank."""
        self.written = written
        self.is_answered = is_answered
        """The rank knows already what the kernel is going to say."""


class Inbox:
    """The message queue of one rank."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.completions = Completions()
        self.last_posted = 0
        """The handle of the latest call that the kernel has."""
        self.entries: deque[Entry] = deque()
        """In the order in which they were said."""
        self.debugger: deque[DebuggerMessage] = deque()
        """What a debugger in the rank has said, which is served at once."""
        self.handled: Entry | None = Entry(None, Written(0, 0))
        """What the kernel serves, until it has said all that ends it."""
        self.is_gone = False
        """Its process is; what it has said before is served all the same."""
        self.ran_too_far = False
        """It ran ahead on a way that it would not have gone: nobody hears what it says until it is told to leave."""

    def read(self) -> None:
        """Read the messages that have arrived, or notice that the channel is closed."""
        channel = self.child.channel
        try:
            channel.read()
        except EOFError:
            self.is_gone = True
        while (said := channel.take()) is not None:
            message, written = said
            if isinstance(message, Ended):  # for later questions on how the rank ended
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

    def answer(self, turn: object) -> None:
        """Send a value to the rank."""
        with suppress(OSError):  # it is gone, which is noticed when its next message is read
            self.child.channel.send(turn)
