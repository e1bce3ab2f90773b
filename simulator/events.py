"""The events of a run. A `Trace` is their sequence."""

from enum import Enum
from typing import NamedTuple

from ddpsim.simulator.calls import Call


class EventKind(Enum):
    """The kind of an event."""

    ISSUE = "issue"
    """A rank issued a call. The field `call` is set."""
    MATCH = "match"
    """The last rank joined a call, and the data moved. The field `call` is that of the last rank. For a receive from
    any source, `text` names the sender."""
    WAIT = "wait"
    """A rank waits for a call, a store key or the clock. `text` names the key or the time."""
    DONE = "done"
    """A rank's wait ended."""
    STORE = "store"
    """A rank made an operation on the store. `text` names the operation and its key."""
    SLEEP = "sleep"
    """A rank sleeps in virtual time; `text` gives the seconds."""
    FAULT = "fault"
    """An injected fault happened."""
    STEP = "step"
    """A rank's optimizer finished a step; `text` numbers it."""
    NOTE = "note"
    """A note, such as that a rank joined."""
    RETURN = "return"
    """A rank's program returned."""
    RAISE = "raise"
    """A rank's program raised; `text` is the type of the exception."""


THREAD_ENDED, THREAD_RAISED = "thread ended", "thread raised "
"""The texts of the notes that a thread ended, or raised an exception. The exception's type follows the second text."""

EXITED_AT_ONCE = "by os._exit"
"""The text of the return of a rank whose process ended without the exit of Python."""
NOT_CHECKED = "not checked: "
"""How a note begins that says what of a program was not simulated. The result repeats it."""
AT_EXIT = "at exit: "
"""How a note begins that says what an exit handler raised, which changes no exit status. The result repeats it."""
RAW_MEMORY = "wrong elements: "
"""How a note begins that says of which tensor gloo moves other elements. The result repeats it."""
NOT_EXPLORED = f"{NOT_CHECKED}other schedules from where "
"""How a note begins that says from where on only one schedule is run."""


class Event(NamedTuple):
    """One event of a run: an action of one rank, or of one of its threads."""

    kind: EventKind
    rank: int
    choice_points: int
    """The number of choice points (places where the scheduler chose) before the event."""
    time: float
    """Virtual seconds since the start."""
    call: Call | None = None
    text: str = ""
    thread: str = ""
    """The name of the thread; "" for the thread that runs the rank's program."""

    def line(self) -> str:
        """Return the event as one line of text. The line is the same on every machine: file names have no folders."""
        call = self.call
        who = f"{self.rank} {self.thread!r}" if self.thread else self.rank
        head = f"{self.choice_points} {self.time!r} {who} {self.kind.value}"
        if call is None:
            return f"{head} {self.text}"
        head = f"{head} {call.group}#{call.sequence} {call.signature} {call.peer} {call.tag}"
        return f"{head} {call.site} {call.origin} {self.text}"
