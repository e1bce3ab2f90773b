"""Where an execution stands, and where each of its tasks does: the states, and one transition function each."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from ddpsim.simulator.errors import internal_error


class Phase(Enum):
    """Where an execution stands."""

    RUNNING = "running"
    """Tasks run, one at a time."""
    STOPPING = "stopping"
    """Every task is unwound, in the order of their numbers."""
    OVER = "over"
    """The last task has ended."""


class Ending(Enum):
    """Why an execution stops."""

    FINISHED = "every rank has ended"
    DEADLOCK = "nobody can go on"
    MISMATCH = "calls that met do not agree"
    STEPS = "more steps than the budget has"
    POLLS = "more polls in vain than the budget has"
    SECONDS = "more seconds than the budget has"
    STUCK = "a rank is blocked outside the simulation"
    INTERRUPTED = "whoever runs the execution was interrupted"
    BROKEN = "the machinery broke"


class Life:
    """The life of one execution: it runs, stops for one reason, and is over."""

    __slots__ = ("ending", "failed_under", "failure", "phase")

    def __init__(self) -> None:
        self.phase = Phase.RUNNING
        self.ending: Ending | None = None
        self.failure: BaseException | None = None
        """What broke the machinery (a policy that raised); no rank's error. The first one stands."""
        self.failed_under: int | None = None
        """The rank that ran then."""

    def stop(self, ending: Ending) -> None:
        """Let every task be unwound. The first reason stands."""
        if self.phase is Phase.RUNNING:
            self.phase, self.ending = Phase.STOPPING, ending

    def end(self) -> None:
        """The last task has ended."""
        self.stop(Ending.FINISHED)
        self.phase = Phase.OVER

    def break_off(self, error: BaseException, under: int | None) -> None:
        """Stop with an error of the machinery, which whoever runs the execution shall raise."""
        if self.failure is None:
            self.failure, self.failed_under = error, under
        self.stop(Ending.BROKEN)

    def break_off_by_bug(self, error: Exception, under: int | None) -> None:
        """As `break_off`, for an error that nobody but us can have made (or a rank's recursion that left no room)."""
        if not isinstance(error, RecursionError):
            error = internal_error(error, "the run" if under is None else f"the run, at rank {under}")
        self.break_off(error, under)


class State(Enum):
    """Where a task stands."""

    READY = "ready"
    """Enabled, or running."""
    TIMED_OUT = "timed out"
    """Enabled: the clock ended its wait."""
    WAITING = "waiting"
    """Not enabled: for a wake, or an alarm of the virtual clock."""
    CANCELLED = "cancelled"
    """Enabled, and unwound as soon as it has the baton, because its rank is over."""
    RETURNED = "returned"
    """Its program came to its end."""
    RAISED = "raised"
    """An exception ended its program."""
    UNWOUND = "unwound"
    """Carried out of its program because the execution, or its rank, was over."""
    ABANDONED = "abandoned"
    """Still inside code we do not control; it is left behind."""

    __hash__ = object.__hash__  # looked up at each context switch; Enum's own is written in Python


class Change(Enum):
    """What happens to a task."""

    WAIT = "wait"
    WAKE = "wake"
    """Somebody did what it waits for."""
    RING = "ring"
    """Its alarm did."""
    GO_ON = "go on"
    """It has seen that its alarm rang."""
    CANCEL = "cancel"
    RETURN = "return"
    RAISE = "raise"
    UNWIND = "unwind"
    ABANDON = "abandon"

    __hash__ = object.__hash__  # as of State


UNFINISHED = (State.READY, State.TIMED_OUT, State.WAITING, State.CANCELLED)
_ENDS = {
    Change.RETURN: State.RETURNED,
    Change.RAISE: State.RAISED,
    Change.UNWIND: State.UNWOUND,
    Change.ABANDON: State.ABANDONED,
}
_NEXT: dict[tuple[State, Change], State] = {
    (State.READY, Change.WAIT): State.WAITING,
    (State.WAITING, Change.WAKE): State.READY,
    (State.WAITING, Change.RING): State.TIMED_OUT,
    (State.TIMED_OUT, Change.GO_ON): State.READY,
    **{(state, Change.CANCEL): State.CANCELLED for state in UNFINISHED},
    **{(state, change): end for state in UNFINISHED for change, end in _ENDS.items()},
    **{(end, change): end for end in _ENDS.values() for change in (*_ENDS, Change.CANCEL)},
}
"""Who has ended stays as it is: an interrupt may let it say so twice."""


state_after: Callable[[tuple[State, Change]], State] = _NEXT.__getitem__
"""The state after a change. KeyError where it must not happen, as for a task to wait that waits."""
