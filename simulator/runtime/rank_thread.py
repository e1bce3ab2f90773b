"""A rank, its threads, and what they are doing."""

from __future__ import annotations

import threading
from _thread import allocate_lock as _allocate_lock
from collections.abc import Callable
from enum import Enum
from typing import Any

from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.runtime.ending import Ending
from ddpsim.simulator.waits import Wait


class RankUnwound(BaseException):  # not an error: it carries a thread out
    """Leaves what a thread runs when the execution is over. A BaseException: `except Exception` lets it through."""


class RankReturned(BaseException):  # not an error either
    """Ends a rank's program as if it had returned (an `EarlyReturn` fault)."""


class Status(Enum):
    """Where a thread stands."""

    READY = "ready"
    """Enabled, or running."""
    WAITING = "waiting"
    RETURNED = "returned"
    RAISED = "raised"
    UNWOUND = "unwound"
    """Carried out of its program because the execution was over."""
    ABANDONED = "abandoned"
    """Still inside code we do not control; its thread is left behind."""


FINISHED = frozenset({Status.RETURNED, Status.RAISED, Status.UNWOUND, Status.ABANDONED})


class Rank:
    """A rank: what its threads share, as the threads of a process do. Only the thread that has the baton touches it."""

    __slots__ = (
        "calls_made",
        "completed",
        "delivering",
        "destroyed",
        "error",
        "has_started_threads",
        "is_ending",
        "last_call",
        "main",
        "pending",
        "rank",
        "threads",
        "value",
    )

    def __init__(self, rank: int, body: Callable[[RankThread], None]) -> None:
        self.rank = rank
        self.error: BaseException | None = None
        self.value: Any = None
        self.calls_made = 0
        self.last_call: Call | None = None
        self.destroyed: dict[str, Site] = {}
        """The groups that it destroyed, and the lines that did."""
        self.pending: list[Pending] = []
        """Issued and not complete, in the order of issue."""
        self.completed: list[Pending] = []
        """Complete, and not yet delivered."""
        self.delivering: list[tuple[Pending, RankThread]] = []
        """Completions whose chains are running, and on whose thread."""
        self.main = RankThread(rank, self)
        self.main.thread = threading.Thread(target=body, args=(self.main,), name=f"ddpsim rank {rank}", daemon=True)
        self.threads = [self.main]
        """Those that have not ended, in the order in which they were started."""
        self.has_started_threads = False
        self.is_ending = False
        """Its program is over, and it waits for the threads that are left."""

    @property
    def is_finished(self) -> bool:
        """True once the rank will not run again."""
        return self.main.is_finished

    @property
    def status(self) -> Status:
        """Where its program stands."""
        return self.main.status

    @property
    def wait(self) -> Wait | None:
        """What its program waits for."""
        return self.main.wait


class RankThread:
    """A thread of a rank and its half of the baton. Only the thread that holds the baton touches the fields."""

    __slots__ = (
        "baton",
        "ending",
        "fate",
        "has_alarm",
        "ident",
        "is_condemned",
        "is_daemon",
        "is_reducing_at_once",
        "joiners",
        "lock_step",
        "locks_in_a_row",
        "locks_made",
        "name",
        "number",
        "of",
        "rank",
        "started_at",
        "status",
        "thread",
        "timed_out",
        "wait",
    )

    def __init__(
        self, number: int, of: Rank, name: str = "", *, is_daemon: bool = False, started_at: Site = NOWHERE
    ) -> None:
        self.number = number
        """The rank for the thread that runs the rank's program; others count on from the world size as they start."""
        self.of = of
        """The rank that it belongs to."""
        self.rank = of.rank
        self.name = name
        """As Python calls it; "" for the one that runs the rank's program."""
        self.is_daemon = is_daemon
        self.started_at = started_at
        """The line of the user's program that did; what the thread does may be all a library's."""
        self.baton = _allocate_lock()
        self.baton.acquire()
        self.status = Status.READY
        self.wait: Wait | None = None
        self.has_alarm = False
        """The clock ends what it waits for, at the latest; says nothing of a thread that does not wait."""
        self.timed_out = False
        self.fate: BaseException | None = None
        """What a fault raised in this thread; it may come out in another shape."""
        self.is_reducing_at_once = False
        """The Reducer issues all its calls and then waits for them without coming back to Python in between."""
        self.is_condemned = False
        """Carried out of what it runs as soon as it has the baton, because its rank is over."""
        self.joiners: list[int] = []
        """The numbers of the threads that wait for its end."""
        self.locks_made = 0
        self.locks_in_a_row, self.lock_step = 0, 0
        """How often it stood before a lock with nothing else in between, and at which step it did so last."""
        self.ident = 0
        """Of the thread, once it has started; 0 before."""
        self.ending = Ending(RankUnwound)
        self.thread: threading.Thread | None = None
        """None once a thread that the rank started has ended."""

    def start(self) -> None:
        """Start the thread of a rank's program; it sleeps until it gets the baton."""
        assert self.thread is not None
        self.thread.start()
        self.thread._daemonic = False  # type: ignore[attr-defined]
        # A process's main thread is no daemon, and threads are as the one that makes them, unless told.
        self.ident = self.thread.ident or 0

    @property
    def is_main(self) -> bool:
        """True for the thread that runs the rank's program."""
        return self.of.main is self

    @property
    def is_finished(self) -> bool:
        """True once it will not run again."""
        return self.status in FINISHED

    def __str__(self) -> str:
        return f'rank {self.rank}, thread "{self.name}"' if self.name else f"rank {self.rank}"


class Pending:
    """One issued call until it is complete."""

    __slots__ = ("call", "error", "is_complete", "issuer", "owner", "payload", "receive_completion", "source", "waited")

    def __init__(self, call: Call, issuer: RankThread, payload: Any) -> None:
        self.call = call
        self.owner = issuer.of
        self.issuer = issuer.number
        self.payload = payload
        """The tensors, for the transport; opaque here."""
        self.is_complete = False
        self.error: Exception | None = None
        """What the transport said instead of moving the data."""
        self.waited = False
        self.source: int | None = None
        """Who sent the message, once a receive is complete."""
        self.receive_completion: Callable[[], None] = _ignore
        """Runs on a thread of the owner when the completion is delivered: sets futures and runs their chains."""

    def release(self) -> None:
        """Let go of the tensors and of the handle, which holds this in turn."""
        self.payload = None
        self.receive_completion = _ignore


def _ignore() -> None:
    """Nobody asked for the completion."""
