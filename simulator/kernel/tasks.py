"""The kernel's records of ranks, and of their tasks: a rank's program and the threads that it starts."""

from collections.abc import Generator
from typing import Any, NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.uneven import LoaderLines
from ddpsim.simulator.faults import Crash, EarlyReturn
from ddpsim.simulator.kernel.answers import Answer
from ddpsim.simulator.kernel.requests import RankError
from ddpsim.simulator.kernel.states import UNFINISHED, TaskChange, TaskState, state_after
from ddpsim.simulator.waits import Wait

Script = Generator[Answer, Any, Any]
"""A generator that serves one request of a rank. It yields intermediate answers, is sent the host's replies, and
returns the value of the last answer."""


class IssuedCall(NamedTuple):
    """A communication call that has been issued and is not complete."""

    call: Call
    handle: int
    rank: "RankRecord"
    name: tuple[int, int]
    """The number of the rank, and the handle of the call."""
    since: float
    """The virtual seconds at which the call was issued."""


class RankRecord:
    """The kernel's record of a rank: the state that its program and threads share."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.error: RankError | None = None
        self.calls_made = 0
        self.optimizer_steps = 0
        self.batches: dict[LoaderLines, list[int]] = {}
        """The number of batches of each data loader that the rank began to iterate over, by its lines."""
        self.last_call: Call | None = None
        self.destroyed: dict[str, Site] = {}
        """The groups that the rank destroyed, with the lines that destroyed them."""
        self.open: dict[int, IssuedCall] = {}
        """The calls that are not complete, by handle, in the order of issue."""
        self.completed: list[int] = []
        """Handles (numbers) of calls that are complete and whose callbacks have not begun to run."""
        self.delivering: list[tuple[int, Task]] = []
        """Completed calls whose callbacks are running: the call's handle, and the thread that runs them."""
        self.main = Task(rank, self)
        self.tasks = [self.main]
        """The rank's program and threads that have not ended, in the order in which they were started."""
        self.has_started_threads = False


class Task:
    """The program of a rank, or a thread that it started."""

    def __init__(self, number: int, rank: RankRecord, name: str = "", is_daemon: bool = False) -> None:
        self.number = number
        """The rank, for a rank's program. Threads have the numbers from the world size on, in order of start."""
        self.rank = rank
        self.rank_number = rank.rank
        self.name = name
        """The name of the Python thread; "" for a rank's program."""
        self.is_daemon = is_daemon
        """True for a thread for whose end its rank does not wait."""
        self.state = TaskState.READY
        self.wait: Wait | None = None
        self.waits_since = 0.0
        """The virtual seconds at which the latest wait began."""
        self.store_seconds: float | None = None
        """The time-out of the store, for a wait without one of its own."""
        self.fault: tuple[Crash | EarlyReturn, int] | None = None
        """The injected fault that ended the program or thread, and the number of the call before which it struck."""
        self.joiners: list[int] = []
        """The numbers of the programs and threads that wait for the end of this one."""
        self.scripts: list[Script] = []
        """The generators that serve the requests of this program or thread; the innermost request is last."""

    def change_state(self, change: TaskChange) -> None:
        """Change the state of this program or thread."""
        self.state = state_after((self.state, change))

    @property
    def is_main(self) -> bool:
        """True for the program of a rank."""
        return self.rank.main is self

    @property
    def is_finished(self) -> bool:
        """True once the task will not run again: its program or thread has ended or was abandoned."""
        return self.state not in UNFINISHED

    @property
    def is_enabled(self) -> bool:
        """True if the program or thread can run, and waits for no other one and not for the clock."""
        return self.state in (TaskState.READY, TaskState.TIMED_OUT, TaskState.CANCELLED)

    def __str__(self) -> str:
        rank = self.rank.rank
        return f'rank {rank}, thread "{self.name}"' if self.name else f"rank {rank}"
