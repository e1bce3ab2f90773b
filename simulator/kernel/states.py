"""The states of a run and of its tasks (programs and threads of ranks), and the transitions between these states."""

from collections.abc import Callable
from enum import Enum

from ddpsim.simulator.errors import make_internal_error


class RunPhase(Enum):
    """The phase of a run."""

    RUNNING = "running"
    STOPPING = "stopping"
    """The run is ending: all programs and threads of ranks are ended early, in the order of their numbers."""
    OVER = "over"
    """The last program or thread of a rank has ended."""


class RunEnding(Enum):
    """The reason why a run stops."""

    FINISHED = "every rank has ended"
    DEADLOCK = "nobody can go on"
    MISMATCH = "calls that met do not agree"
    STEPS = "more steps than the budget has"
    POLLS = "more polls in vain than the budget has"
    SLEEPS = "more sleeps in vain than the budget has"
    BLIND = "a rank looks again and again whether a call is complete, which its backend does not show"
    SECONDS = "more seconds than the budget has"
    STUCK = "a rank is blocked outside the simulation"
    INTERRUPTED = "whoever runs the execution was interrupted"
    BROKEN = "the machinery broke"
    AGENT = "the agent ends all ranks, as one has failed"


class RunLifecycle:
    """Whether one run goes on, stops or has ended, and the reason why it stops."""

    def __init__(self) -> None:
        self.phase = RunPhase.RUNNING
        self.ending: RunEnding | None = None
        self.failure: BaseException | None = None
        """The error that ended the run and that no rank raised, such as one of the policy. Only the first is kept."""
        self.failed_under: int | None = None
        """The rank that ran when `failure` was raised."""
        self.is_interrupted = False
        """True if Ctrl-C, or SIGTERM, ended the run."""
        self.end_trial: Callable[[bool], None] | None = None
        """Set once waits of a deadlock were ended by errors that ranks may catch, and called when the run stops: True
        if all ranks ended normally. Otherwise it puts the run back to the deadlock."""

    def begin_stop(self, ending: RunEnding) -> None:
        """Begin to end all programs and threads of ranks early. Only the first reason is kept."""
        if self.phase is RunPhase.RUNNING:
            self.phase, self.ending = RunPhase.STOPPING, ending
            if self.end_trial is not None:
                end_trial, self.end_trial = self.end_trial, lambda has_passed: None  # it refers to the whole run
                end_trial(ending is RunEnding.FINISHED)

    def fail_trial(self) -> bool:
        """Stop the run with its deadlock, as a rank that could have caught the error failed. False without a trial."""
        if self.end_trial is not None:
            self.begin_stop(RunEnding.DEADLOCK)
        return self.end_trial is not None

    def mark_ended(self) -> None:
        """Record that the last program or thread of a rank has ended."""
        self.begin_stop(RunEnding.FINISHED)
        self.phase = RunPhase.OVER

    def abort(self, error: BaseException, under: int | None) -> None:
        """Stop the run with an error that is raised to the run's caller."""
        if self.failure is None:
            self.failure, self.failed_under = error, under
        self.begin_stop(RunEnding.BROKEN)

    def abort_with_internal_error(self, error: Exception, under: int | None) -> None:
        """Stop the run with an internal error. A RecursionError may be the rank's own, so it is passed on unchanged."""
        if not isinstance(error, RecursionError):
            error = make_internal_error(error, "the run" if under is None else f"the run, at rank {under}")
        self.abort(error, under)


class TaskState(Enum):
    """The state of a task (a rank's program or thread)."""

    READY = "ready"
    """The task runs, or can run."""
    TIMED_OUT = "timed out"
    """The task can run, because the clock ended its wait."""
    WAITING = "waiting"
    """The task waits to be woken, or for a time-out of the virtual clock."""
    CANCELLED = "cancelled"
    """The task has to end early when it runs next, because its rank has ended."""
    RETURNED = "returned"
    RAISED = "raised"
    """An exception ended the task's program."""
    UNWOUND = "unwound"
    """The task's program was ended early, because the run or the rank had ended."""
    ABANDONED = "abandoned"
    """The task is stuck in code that ddpsim cannot interrupt, so the run ends without it."""

    __hash__ = object.__hash__  # used at each context switch; Enum's own is written in Python


class TaskChange(Enum):
    """An event in the life of a task (a rank's program or thread)."""

    WAIT = "wait"
    WAKE = "wake"
    """Another program or thread did what this one waits for."""
    RING = "ring"
    """The task's time-out passed and ended its wait."""
    GO_ON = "go on"
    """The task has run again after its time-out."""
    CANCEL = "cancel"
    RETURN = "return"
    RAISE = "raise"
    UNWIND = "unwind"
    ABANDON = "abandon"

    __hash__ = object.__hash__  # as in TaskState


UNFINISHED = (TaskState.READY, TaskState.TIMED_OUT, TaskState.WAITING, TaskState.CANCELLED)
_ENDS = {
    TaskChange.RETURN: TaskState.RETURNED,
    TaskChange.RAISE: TaskState.RAISED,
    TaskChange.UNWIND: TaskState.UNWOUND,
    TaskChange.ABANDON: TaskState.ABANDONED,
}
_STATE_AFTER_CHANGE: dict[tuple[TaskState, TaskChange], TaskState] = {
    (TaskState.READY, TaskChange.WAIT): TaskState.WAITING,
    (TaskState.WAITING, TaskChange.WAKE): TaskState.READY,
    (TaskState.WAITING, TaskChange.RING): TaskState.TIMED_OUT,
    (TaskState.TIMED_OUT, TaskChange.GO_ON): TaskState.READY,
    **{(state, TaskChange.CANCEL): TaskState.CANCELLED for state in UNFINISHED},
    **{(state, change): end for state in UNFINISHED for change, end in _ENDS.items()},
    **{(end, change): end for end in _ENDS.values() for change in (*_ENDS, TaskChange.CANCEL)},
}
"""The new state, by old state and change. An ended task keeps its state: its end may be reported twice."""


state_after: Callable[[tuple[TaskState, TaskChange]], TaskState] = _STATE_AFTER_CHANGE.__getitem__
"""The state after a change. KeyError if the change is impossible in that state."""
