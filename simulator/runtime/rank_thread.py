"""A rank and its threads, as the host that runs them keeps them, and how a thread ends. The kernel has their states."""

import _thread
import builtins
import ctypes
import sys
import threading
from _thread import allocate_lock as _allocate_lock
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.kernel.answers import CallFailure
from ddpsim.simulator.kernel.states import TaskState
from ddpsim.simulator.kernel.tasks import RankRecord, Task


class RankUnwound(BaseException):  # not an error: it carries a thread out
    """Raised in a rank's thread to end it early, when the run has ended.

    A BaseException, so `except Exception` lets it pass.
    """


class RankReturned(BaseException):  # not an error either
    """Raised to end a rank's program as if it had returned (an injected `EarlyReturn` fault)."""


class ThreadEndClaim:
    """Decides what ends a thread: the thread itself, or the watcher (threaded_run.py) that interrupts it. The first to
    call `claim_end` ends the thread; until then the thread can be interrupted."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error
        self._owner = 0
        self._lock = _thread.allocate_lock()

    def interrupt_thread(self, ident: int) -> None:
        """Raise an error in the thread at its next bytecode; if it is blocked in C code, after that code."""
        with self._lock:
            if ident and not self._owner:
                _raise_in_thread(ident, self._error)

    def claim_end(self) -> bool:
        """Return True for the first caller: it alone lets another thread run, and is not interrupted any more. A
        pending interrupt is raised here; the thread then calls this again."""
        with self._lock:
            self._owner = self._owner or get_ident()
        for _ in range(2):  # a pending exception is raised where a loop jumps back
            pass
        return self._owner == get_ident()


class _SelfInterrupt(BaseException):
    """An exception that a thread raises in itself, to clear a pending interrupt."""


def clear_pending_interrupt() -> None:
    """Clear the interpreter's flag of a pending interrupt in a thread that does not run.

    As long as an asynchronous exception is pending in any thread, Python 3.11 checks for it at each bytecode, and a
    trace function (of coverage, a debugger) never returns. Raising an exception in the current thread clears the flag.
    """
    try:
        _raise_in_thread(get_ident(), _SelfInterrupt)
        for _ in range(1_000_000):  # it is raised in one of the next iterations
            pass
    except _SelfInterrupt:
        pass


def _raise_in_thread(ident: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


@dataclass(slots=True, eq=False)
class PendingCall:
    """A communication call that was issued and is not complete yet."""

    call: Call
    handle: int
    """The number of the call among all calls of its rank, from 1."""
    owner: "ThreadedRank"
    """The rank that issued the call. Another rank may get hold of its work handle."""
    payload: Any
    """The call's tensors, for the code that moves data between ranks; nothing here looks into them."""
    members: tuple[int, ...]
    """The global ranks of the group."""
    poisoned: Any = None
    """The rank's own tensors, if the call works on copies of them; see simulator/hazards/poison.py."""
    is_complete: bool = False
    error: Exception | None = None
    """The error because of which the call's data could not be moved."""
    waited: bool = False
    """True once the rank has waited for the call, or has found it complete."""
    source: int | None = None
    """The rank that sent the message, once a receive is complete."""
    is_delivered: bool = False
    """True once the call's futures are being set, or have been."""
    when_delivered: list[Callable[[], None]] = field(default_factory=list)
    """Functions to run on a thread of the call's rank after completion: they set futures and run callbacks."""
    when_moved: Callable[[], None] | None = None
    """A function that runs as soon as the call's data has moved, on any thread, before a program reads the data."""


def make_call_error(failure: CallFailure) -> Exception:
    """Return the exception with which a call ends."""
    kind = getattr(sys.modules["torch.distributed"], failure.kind, None) or getattr(builtins, failure.kind)
    error: Exception = kind(failure.text)
    error.reason = failure.reason  # type: ignore[attr-defined]  # for the finding
    error.is_told = failure.reason is None  # type: ignore[attr-defined]
    return error


def is_tried(error: BaseException | None) -> bool:
    """True for an error that only tries whether the program catches it; see `ClosedConnection`."""
    return bool(getattr(getattr(error, "reason", None), "is_tried", False))


class ThreadedRank:
    """A rank: the state that its threads share. Only the thread whose turn it is accesses this object."""

    def __init__(self, record: RankRecord, body: "Callable[[RankThread], None]") -> None:
        self.rank = record.rank
        self.value: Any = None
        """The value that the rank's program returned."""
        self.calls_issued = 0
        """The number of calls so far. It is also the handle (number) of the latest call."""
        self.pending: dict[int, PendingCall] = {}
        """The rank's issued calls whose callbacks have not run, by handle (number), in the order of issue."""
        self.with_future: list[Call] = []
        """During an exploration of schedules: calls on which futures of the program may depend."""
        self.main = RankThread(record.main, self)
        self.main.thread = threading.Thread(
            target=body, args=(self.main,), name=f"ddpsim rank {self.rank}", daemon=True
        )
        self.threads = [self.main]
        """The threads that have not ended, in the order in which they were started."""
        self.has_started_threads = False
        self.awaiting_futures: list[int] = []
        """The numbers of the threads that wait for a future which another thread may set."""
        self.is_ending = False
        """True once the rank's program has ended and the rank waits for its remaining threads."""

    def open_calls(self) -> list[PendingCall]:
        """Return the rank's calls that are not complete, in the order of issue."""
        return [pending for pending in self.pending.values() if not pending.is_complete]


class RankThread:
    """A thread of a rank, with the lock at which it sleeps until its turn. Only the running thread changes it."""

    def __init__(
        self,
        task: Task | None,
        of: ThreadedRank,
        name: str = "",
        *,
        is_daemon: bool = False,
        started_at: Site = NOWHERE,
    ) -> None:
        if task is not None:
            self.connect_task(task)
        self.of = of
        self.rank = of.rank
        self.name = name
        """The name of the Python thread; "" for the rank's main thread."""
        self.is_daemon = is_daemon
        self.started_at = started_at
        """The line of the user's program that started the thread; the thread itself may run only library code."""
        self.baton = _allocate_lock()
        self.baton.acquire()
        self.fault: BaseException | None = None
        """The exception that an injected fault raised in this thread; C++ code may wrap it in another one."""
        self.is_reducing_at_once = False
        """True while DDP's Reducer issues all its calls and then waits for them, without returning to Python."""
        self.has_seen_end = False
        """True once the thread has run after the end of the run."""
        self.handled_at_end: BaseException | None = None
        """The exception that the thread was handling when the run ended. Later ones are consequences of the end."""
        self.locks_made = 0
        self.locks_in_a_row, self.lock_step = 0, 0
        """The number of lock operations in a row, with no other step in between, and the step of the last one."""
        self.ident = 0
        """The ident of the Python thread; 0 before its start."""
        self.asker = 0
        """The ident of the thread that may make requests; 0 while a debugger is open, when none may."""
        self.is_outside = False
        """True while the thread waits in real time for something outside the simulation, so it is not stuck."""
        self.visit: Callable[[], None] | None = None
        """A function that a debugger in another rank wants this sleeping thread to run."""
        self.exit = ThreadEndClaim(RankUnwound)
        self.thread: threading.Thread | None = None
        """The Python thread; None once a thread that the rank started has ended."""

    def start_main_thread(self) -> None:
        """Start the rank's main thread; it sleeps until its first turn."""
        assert self.thread is not None
        self.thread.start()
        self.thread._daemonic = False  # type: ignore[attr-defined]
        # As a process's main thread it is no daemon: threads inherit `daemon` from the thread that makes them.
        self.ident = self.asker = self.thread.ident or 0

    def wait_for_baton(self) -> None:
        """Sleep until it is this thread's turn to run."""
        self.baton.acquire()
        if self.visit is not None:
            self.run_visits()

    def run_visits(self) -> None:
        """Run the function for which a debugger woke this thread, then sleep until it is the thread's turn to run."""
        while self.visit is not None:
            visit, self.visit = self.visit, None
            visit()
            self.baton.acquire()

    def run_while_sleeping(self, visit: Callable[[], None]) -> None:
        """Make this sleeping thread run a function, and wait for the function's end.

        Another thread calls this, and gets an exception of the function. Raised in the sleeping thread, it would end
        that thread only, and the run would wait for it forever.
        """
        over, errors = _allocate_lock(), list[Exception]()
        over.acquire()

        def run_visit() -> None:
            try:
                visit()
            except Exception as error:
                errors.append(error)
            finally:
                over.release()

        self.visit = run_visit
        self.baton.release()
        over.acquire()
        if errors:
            raise errors[0]

    def connect_task(self, task: Task) -> None:
        """Give the thread its task (the kernel's record of a thread) before it first runs."""
        self.task = task
        self.number = task.number
        """The rank, for the rank's main thread. Other threads are numbered from the world size on, as they start."""

    def record_run_end(self) -> None:
        """Record the exception that the thread is handling at the end of the run."""
        if not self.has_seen_end:
            self.has_seen_end, self.handled_at_end = True, sys.exc_info()[1]

    @property
    def has_task(self) -> bool:
        """True once the thread has its task (the kernel's record of a thread)."""
        return hasattr(self, "task")

    @property
    def is_main(self) -> bool:
        """True for the rank's main thread, which runs its program."""
        return self.of.main is self

    @property
    def is_finished(self) -> bool:
        """True once the thread will not run again."""
        return self.task.is_finished

    @property
    def is_abandoned(self) -> bool:
        """True if the thread could not be interrupted, so the run ended without it."""
        return self.has_task and self.task.state is TaskState.ABANDONED

    @property
    def is_waiting(self) -> bool:
        """True until another thread or the time-out wakes this thread."""
        return self.task.state is TaskState.WAITING

    def __str__(self) -> str:
        return str(self.task)
