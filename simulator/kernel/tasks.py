"""What the kernel knows of a rank, and of each of its tasks: its program, and the threads that it started."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.faults import Crash, EarlyReturn
from ddpsim.simulator.kernel.answers import Answer
from ddpsim.simulator.kernel.requests import RankError
from ddpsim.simulator.kernel.states import UNFINISHED, Change, State, state_after
from ddpsim.simulator.waits import Wait

Script = Generator[Answer, Any, Any]
"""Serves one request: yields the answers on the way, is sent what the host says to them, and returns the last one's
value."""


class IssuedCall(NamedTuple):
    """A call that has been issued and is not complete."""

    call: Call
    handle: int
    rank: RankRecord
    """The rank that issued it."""
    name: tuple[int, int]
    """Number of the rank, and the handle."""


class RankRecord:
    """A rank: what its tasks share, as the threads of a process do."""

    __slots__ = (
        "batches",
        "calls_made",
        "completed",
        "delivering",
        "destroyed",
        "error",
        "has_started_threads",
        "last_call",
        "main",
        "open",
        "optimizer_steps",
        "rank",
        "tasks",
    )

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.error: RankError | None = None
        self.calls_made = 0
        self.optimizer_steps = 0
        self.batches: dict[Site, list[int]] = {}
        """How many the data loaders had that it began to go through, by line."""
        self.last_call: Call | None = None
        self.destroyed: dict[str, Site] = {}
        """The groups that it destroyed, and the lines that did."""
        self.open: dict[int, IssuedCall] = {}
        """Issued and not complete, by handle, in the order of issue."""
        self.completed: list[int] = []
        """Handles of calls that are complete, and not yet delivered."""
        self.delivering: list[tuple[int, Task]] = []
        """Completions whose chains are running, and by whom."""
        self.main = Task(rank, self)
        self.tasks = [self.main]
        """Those that have not ended, in the order in which they were started."""
        self.has_started_threads = False


class Task:
    """The program of a rank, or a thread that it started."""

    __slots__ = ("fault", "joiners", "name", "number", "rank", "rank_number", "scripts", "state", "wait")

    def __init__(self, number: int, rank: RankRecord, name: str = "") -> None:
        self.number = number
        """The rank for the rank's program; others count on from the world size as they start."""
        self.rank = rank
        self.rank_number = rank.rank
        self.name = name
        """As Python calls the thread; "" for the rank's program."""
        self.state = State.READY
        self.wait: Wait | None = None
        self.fault: tuple[Crash | EarlyReturn, int] | None = None
        """What struck it for good, and before which call of its rank."""
        self.joiners: list[int] = []
        """The numbers of those that wait for its end."""
        self.scripts: list[Script] = []
        """Those under way, the innermost last."""

    def change(self, change: Change) -> None:
        """Let something happen to it."""
        self.state = state_after((self.state, change))

    @property
    def is_main(self) -> bool:
        """True for the program of a rank."""
        return self.rank.main is self

    @property
    def is_finished(self) -> bool:
        """True once it will not run again."""
        return self.state not in UNFINISHED

    @property
    def is_enabled(self) -> bool:
        """True if it is able to take a step."""
        return self.state in (State.READY, State.TIMED_OUT, State.CANCELLED)

    def __str__(self) -> str:
        rank = self.rank.rank
        return f'rank {rank}, thread "{self.name}"' if self.name else f"rank {rank}"
