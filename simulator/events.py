"""Events: what happened, one value a happening. A `Trace` is their sequence."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ddpsim.simulator.calls import Call


class EventKind(Enum):
    """What an event tells."""

    ISSUE = "issue"
    """A rank issued a call; `call` is set."""
    MATCH = "match"
    """The last rank of a slot arrived and the data moved; `call` is the last arrival. Of a receive from any source,
    `text` says whose message it took."""
    WAIT = "wait"
    """A rank waits for a call, a store key or the clock; `text` says for what if it is no call."""
    DONE = "done"
    """A rank's wait ended."""
    STORE = "store"
    """A store operation; `text` names it with its key."""
    SLEEP = "sleep"
    """A rank sleeps in virtual time; `text` gives the seconds."""
    FAULT = "fault"
    """A fault of the plan struck."""
    STEP = "step"
    """A rank's optimizer finished a step; `text` numbers it."""
    NOTE = "note"
    """Something worth telling, such as a rank that joined."""
    RETURN = "return"
    """A rank's program returned."""
    RAISE = "raise"
    """A rank's program raised; `text` is the type of the exception."""


THREAD_ENDED, THREAD_RAISED = "thread ended", "thread raised "
"""What notes say of a thread; of one that raised, the type of the exception follows."""


class Event(NamedTuple):
    """One happening."""

    kind: EventKind
    rank: int
    choice_points: int
    """How many choice points came before it."""
    time: float
    """Virtual seconds since the start."""
    call: Call | None = None
    text: str = ""
    thread: str = ""
    """The name of the thread, if it is not the one that runs the rank's program."""

    def line(self) -> str:
        """The event as one line of text, the same on every machine: file names without folders."""
        call = self.call
        who = f"{self.rank} {self.thread!r}" if self.thread else self.rank
        if call is None:
            return f"{self.choice_points} {self.time!r} {who} {self.kind.value} {self.text}"
        return (
            f"{self.choice_points} {self.time!r} {who} {self.kind.value} {call.group}#{call.sequence} {call.signature} "
            f"{call.peer} {call.tag} {call.site} {call.origin} {self.text}"
        )
