"""One rank: its thread, its half of the baton, and what it is doing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Any

from simulator.calls import Call, Site
from simulator.waits import Wait


class RankUnwound(BaseException):  # not an error: it carries a rank out
    """Leaves a rank's program when the execution is over. A BaseException: `except Exception` lets it through."""


class RankReturned(BaseException):  # not an error either
    """Ends a rank's program as if it had returned (an `EarlyReturn` fault)."""


class Status(Enum):
    """Where a rank stands."""

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


class RankThread:
    """A rank and its thread. Only the thread that holds the baton touches the fields."""

    __slots__ = (
        "baton",
        "calls_made",
        "completed",
        "destroyed",
        "error",
        "fate",
        "ident",
        "is_reducing_at_once",
        "last_call",
        "pending",
        "rank",
        "status",
        "thread",
        "timed_out",
        "value",
        "wait",
    )

    def __init__(self, rank: int, body: Callable[[RankThread], None]) -> None:
        self.rank = rank
        self.baton = threading.Lock()
        self.baton.acquire()
        self.status = Status.READY
        self.wait: Wait | None = None
        self.timed_out = False
        self.error: BaseException | None = None
        self.fate: BaseException | None = None
        """What a fault raised in this rank; it may come out in another shape."""
        self.value: Any = None
        self.calls_made = 0
        self.is_reducing_at_once = False
        """The Reducer issues all its calls and then waits for them without coming back to Python in between."""
        self.last_call: Call | None = None
        self.destroyed: dict[str, Site] = {}
        """The groups that it destroyed, and the lines that did."""
        self.pending: list[Pending] = []
        """Issued and not complete, in the order of issue."""
        self.completed: list[Pending] = []
        """Complete, and not yet delivered to this rank."""
        self.ident = 0
        """Of the thread, once it has started; 0 before."""
        self.thread = threading.Thread(target=body, args=(self,), name=f"ddpsim rank {rank}", daemon=True)

    def start(self) -> None:
        """Start the thread; it sleeps until it gets the baton."""
        self.thread.start()
        self.ident = self.thread.ident or 0

    @property
    def is_finished(self) -> bool:
        """True once the rank will not run again."""
        return self.status in FINISHED


class Pending:
    """One issued call until it is complete."""

    __slots__ = ("call", "error", "is_complete", "owner", "payload", "receive_completion", "source", "waited")

    def __init__(self, call: Call, owner: RankThread, payload: Any) -> None:
        self.call = call
        self.owner = owner
        self.payload = payload
        """The tensors, for the transport; opaque here."""
        self.is_complete = False
        self.error: Exception | None = None
        """What the transport said instead of moving the data."""
        self.waited = False
        self.source: int | None = None
        """Who sent the message, once a receive is complete."""
        self.receive_completion: Callable[[], None] = _ignore
        """Runs on the owner's thread when the completion is delivered: sets futures and runs their chains."""

    def release(self) -> None:
        """Let go of the tensors and of the handle, which holds this in turn."""
        self.payload = None
        self.receive_completion = _ignore


def _ignore() -> None:
    """Nobody asked for the completion."""
