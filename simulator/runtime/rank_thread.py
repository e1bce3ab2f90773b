"""A rank and its threads, as the host runs them; where they stand is the kernel's to know."""

from __future__ import annotations

import sys
import threading
from _thread import allocate_lock as _allocate_lock
from collections.abc import Callable
from typing import Any

from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.kernel.states import State
from ddpsim.simulator.kernel.tasks import RankRecord, Task
from ddpsim.simulator.runtime.host import Pending
from ddpsim.simulator.runtime.thread_exit import ThreadExit


class RankUnwound(BaseException):  # not an error: it carries a thread out
    """Leaves what a thread runs when the execution is over. A BaseException: `except Exception` lets it through."""


class RankReturned(BaseException):  # not an error either
    """Ends a rank's program as if it had returned (an `EarlyReturn` fault)."""


class Rank:
    """A rank: what its threads share, as the threads of a process do. Only the thread that has the baton touches it."""

    __slots__ = (
        "calls_issued",
        "has_started_threads",
        "is_ending",
        "main",
        "pending",
        "rank",
        "threads",
        "value",
        "with_future",
    )

    def __init__(self, record: RankRecord, body: Callable[[RankThread], None]) -> None:
        self.rank = record.rank
        self.value: Any = None
        """What its program returned."""
        self.calls_issued = 0
        """The handle of the latest one."""
        self.pending: dict[int, Pending] = {}
        """Issued and not delivered, by handle, in the order of issue."""
        self.with_future: list[Call] = []
        """If somebody explores: the calls that futures of the program may hang on."""
        self.main = RankThread(record.main, self)
        self.main.thread = threading.Thread(
            target=body, args=(self.main,), name=f"ddpsim rank {self.rank}", daemon=True
        )
        self.threads = [self.main]
        """Those that have not ended, in the order in which they were started."""
        self.has_started_threads = False
        self.is_ending = False
        """Its program is over, and it waits for the threads that are left."""

    def open(self) -> list[Pending]:
        """The calls that are not complete, in the order of issue."""
        return [pending for pending in self.pending.values() if not pending.is_complete]


class RankThread:
    """A thread of a rank and its half of the baton. Only the thread that holds the baton touches the fields."""

    __slots__ = (
        "asker",
        "baton",
        "exit",
        "fault",
        "handled_at_end",
        "has_seen_end",
        "ident",
        "is_daemon",
        "is_reducing_at_once",
        "lock_step",
        "locks_in_a_row",
        "locks_made",
        "name",
        "number",
        "of",
        "rank",
        "started_at",
        "task",
        "thread",
        "visit",
    )

    def __init__(
        self, task: Task | None, of: Rank, name: str = "", *, is_daemon: bool = False, started_at: Site = NOWHERE
    ) -> None:
        if task is not None:
            self.adopt(task)
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
        self.fault: BaseException | None = None
        """What a fault raised in this thread; it may come out in another shape."""
        self.is_reducing_at_once = False
        """The Reducer issues all its calls and then waits for them without coming back to Python in between."""
        self.has_seen_end = False
        """It has gone on since the execution came to its end."""
        self.handled_at_end: BaseException | None = None
        """What it was handling when it first did; what it raises later is a consequence of the end."""
        self.locks_made = 0
        self.locks_in_a_row, self.lock_step = 0, 0
        """How often it stood before a lock with nothing else in between, and at which step it did so last."""
        self.ident = 0
        """Of the thread, once it has started; 0 before."""
        self.asker = 0
        """The same, for whoever asks in its name; 0 while a debugger looks at it, and nothing is to communicate."""
        self.visit: Callable[[], None] | None = None
        """What a debugger that looks at it from another rank lets it do where it sleeps."""
        self.exit = ThreadExit(RankUnwound)
        self.thread: threading.Thread | None = None
        """None once a thread that the rank started has ended."""

    def start(self) -> None:
        """Start the thread of a rank's program; it sleeps until it gets the baton."""
        assert self.thread is not None
        self.thread.start()
        self.thread._daemonic = False  # type: ignore[attr-defined]
        # A process's main thread is no daemon, and threads are as the one that makes them, unless told.
        self.ident = self.asker = self.thread.ident or 0

    def sleep(self) -> None:
        """Sleep until it gets the baton."""
        self.baton.acquire()
        if self.visit is not None:
            self.sleep_on()

    def sleep_on(self) -> None:
        """Sleep until it gets the baton, after it was woken for what another thread lets it do meanwhile."""
        while self.visit is not None:
            visit, self.visit = self.visit, None
            visit()
            self.baton.acquire()

    def have_done(self, visit: Callable[[], None]) -> None:
        """Let it do something where it sleeps; another thread calls this, and waits until that is over."""
        over = _allocate_lock()
        over.acquire()

        def do() -> None:
            try:
                visit()
            finally:
                over.release()

        self.visit = do
        self.baton.release()
        over.acquire()

    def adopt(self, task: Task) -> None:
        """Be what the kernel knows; a thread that a rank starts is, before it has the baton."""
        self.task = task
        self.number = task.number
        """The rank for the thread that runs the rank's program; others count on from the world size as they start."""

    def see_end(self) -> None:
        """Note what is being handled, as the execution is over."""
        if not self.has_seen_end:
            self.has_seen_end, self.handled_at_end = True, sys.exc_info()[1]

    @property
    def is_adopted(self) -> bool:
        """True once the kernel knows it."""
        return hasattr(self, "task")

    @property
    def is_main(self) -> bool:
        """True for the thread that runs the rank's program."""
        return self.of.main is self

    @property
    def is_finished(self) -> bool:
        """True once it will not run again."""
        return self.task.is_finished

    @property
    def is_abandoned(self) -> bool:
        """True if it was left behind."""
        return self.is_adopted and self.task.state is State.ABANDONED

    @property
    def is_waiting(self) -> bool:
        """True until somebody, or its alarm, lets it go on."""
        return self.task.state is State.WAITING

    def __str__(self) -> str:
        return str(self.task)
