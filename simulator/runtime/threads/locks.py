"""Locks of the threads of ranks. While a thread waits for a lock, other threads and ranks run.

The first thread that asks gets the lock first. Every order in which threads can get it is also an order in which they
can ask, so exploring the orders of asking loses nothing.

A lock that a rank made is a real lock for threads outside the simulation, and after the run. A lock made before the
run, or during an import, is only real: while a rank waits for it no other rank runs, and the rank is reported as
`stuck`.

`LockMakers` has the replacements of `threading.Lock`, `queue.SimpleQueue` and so on: simulated ones on rank threads,
else Python's own. The last parameter of each of its methods is the original that it replaces.
"""

import sys
import threading
from _thread import allocate_lock
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from ddpsim.simulator.accesses import Access, AccessMode, Object
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.requests import Block, Checkpoint, WakeTask, WriteNote
from ddpsim.simulator.runtime.rank_thread import RankThread
from ddpsim.simulator.runtime.threads import waiting
from ddpsim.simulator.runtime.threads.event_loops import OUTSIDE
from ddpsim.simulator.runtime.threads.lock_steps import LockSteps
from ddpsim.simulator.runtime.threads.waiting import describe_wait, is_in_destructor
from ddpsim.simulator.waits import LockWait

_PyRLock: Any = threading._PyRLock  # type: ignore[attr-defined]


class RankLock:
    """The lock that `threading.Lock()` returns on a rank's thread."""

    def __init__(
        self, steps: LockSteps, maker: RankThread, *, is_inner: bool = False, is_external: bool = False
    ) -> None:
        """`is_inner`: the lock is part of a condition variable of Python's, and only waiting for it is a step."""
        self.is_external = is_external
        """True if a library whose threads are not simulated made the lock: such threads will release it."""
        self._steps = steps
        self._real = allocate_lock()
        self._holder: RankThread | None = None
        """The thread that has the lock. None if the lock is free, or held by a thread outside the simulation."""
        self._waiting: list[RankThread] = []
        """The threads that wait for the lock, in the order in which they asked."""
        self._is_inner = is_inner
        self._has_been_released = False
        self._object: Object = ("lock", maker.number, maker.locks_made)
        maker.locks_made += 1

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as `threading.Lock.acquire` does; a time-out runs in virtual time."""
        me = self._steps.calling_rank_thread()
        if me is None:
            return self._real.acquire(blocking, timeout)
        if timeout != -1 and (not blocking or not 0 <= timeout <= threading.TIMEOUT_MAX):
            return allocate_lock().acquire(blocking, timeout)  # raises Python's own error
        may_wait = blocking and timeout != 0
        self._choice_point_before_acquire(me, may_wait=may_wait)
        if self._real.acquire(False):
            self._holder = me
            if self._has_been_released:
                self._steps.record_acquire(me, self._object)
            return True
        if not may_wait:
            return False
        return self._wait_for_lock(me, None if timeout == -1 else timeout)

    __enter__ = acquire

    def release(self) -> None:
        """Release the lock. The thread that has waited longest gets it."""
        me = self._steps.calling_rank_thread()
        if me is None:
            self._holder = None
            self._real.release()
            return
        if not self._is_inner:
            self._steps.choice_point_before(me, (Access(self._object, AccessMode.CONTRIBUTE),))
        if not self._real.locked() and self._steps.host.is_unwinding(me):
            return  # it was unwound while it waited for the lock
        if not self._is_inner and self._holder is not me:  # used as a signal, or in error: the order matters then
            self._steps.report_accesses(
                me, Access(self._object, AccessMode.READ), Access(self._object, AccessMode.WRITE)
            )
        self._release_and_record(me)

    def locked(self) -> bool:
        """Return whether the lock is held. If it is, other threads run before this returns."""
        self.choice_point_before_read(is_in_vain=self._real.locked())
        return self._real.locked()

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{'locked' if self._real.locked() else 'unlocked'} lock of a simulated rank>"

    def _is_owned(self) -> bool:
        """Return whether the lock is held. Without this, a condition variable would try to take it, which is a step."""
        return self._real.locked()

    def _at_fork_reinit(self) -> None:
        self._real = allocate_lock()
        self._holder = None
        self._waiting.clear()

    @property
    def maker_and_number(self) -> tuple[Any, ...]:
        """The number of the thread that made the lock, and the lock's number in that thread."""
        return self._object[1:]

    @property
    def is_caller_unwinding(self) -> bool:
        """True if the calling thread is being ended early."""
        me = self._steps.calling_rank_thread()
        return me is not None and self._steps.host.is_unwinding(me)

    def choice_point_before_read(self, *, is_in_vain: bool) -> None:
        """Let other threads run before a read of the lock, or of the data that the lock protects."""
        me = self._steps.calling_rank_thread()
        if me is not None:
            access = Access(self._object, AccessMode.READ)
            self._steps.choice_point_before(me, (access,), is_in_vain=is_in_vain)
            self._steps.report_accesses(me, access)

    def _choice_point_before_acquire(self, me: RankThread, *, may_wait: bool) -> None:
        """Let other threads run before the caller asks for the lock; if it will not wait, it also reads its state."""
        if self._is_inner:
            return
        if self._steps.host.is_unwinding(me):
            if not is_in_destructor(sys._getframe(2)):
                self._steps.host.send_request(Checkpoint())  # this raises RankUnwound
            return
        ask, look = Access(self._object, AccessMode.WRITE), Access(self._object, AccessMode.READ)
        if may_wait:
            self._steps.choice_point_before(me, (ask,))
            self._steps.report_accesses(me, ask)
        else:
            self._steps.choice_point_before(me, (look, ask), is_in_vain=self._real.locked())
            self._steps.report_accesses(me, look, *(() if self._real.locked() else (ask,)))

    def _wait_for_lock(self, me: RankThread, timeout_seconds: float | None) -> bool:
        """Let other threads run until the caller gets the lock. False if the time-out passed first."""
        real, steps = self._real, self._steps
        is_outside = steps.only_external_thread_can_release(me, is_external=self.is_external)
        if is_outside or self._holder is None:
            is_taken = (
                bool(steps.wait_for_external_thread(me, lambda s: real.acquire(True, s) or None, timeout_seconds))
                if is_outside
                else real.acquire(True, -1 if timeout_seconds is None else timeout_seconds)
            )
            self._holder = me if is_taken else self._holder
            return is_taken
        host = self._steps.host
        what, site = describe_wait(sys._getframe(1))
        host.send_request(WriteNote(EventKind.WAIT, what))
        holder = None if self._is_inner else self._holder.number
        self._waiting.append(me)
        self._steps.waited.append(self)
        try:
            in_time: bool = host.send_request(Block(LockWait(self._object, what, holder, site), timeout_seconds))
        except BaseException:
            if self._holder is me:  # it got the lock and will not use it
                self._release_and_record(me)
            raise
        finally:
            self._steps.waited.remove(self)
            if me in self._waiting:
                self._waiting.remove(me)
        self._steps.report_accesses(me, Access(self._object, AccessMode.CONTRIBUTE if in_time else AccessMode.READ))
        if not in_time and self._real.acquire(False):  # released at the time-out, before this thread ran
            self._holder, in_time = me, True
        host.send_request(WriteNote(EventKind.DONE, what if in_time else f"{what} timed out"))
        return in_time

    def _release_and_record(self, me: RankThread) -> None:
        self._steps.report_accesses(me, Access(self._object, AccessMode.CONTRIBUTE))
        self._has_been_released = self._steps.record_release(me, self._object) or self._has_been_released
        self._pass_to_waiting_thread()

    def wake_after_external_release(self) -> bool:
        """Give the lock to the thread that has waited longest, if one outside the simulation has released it."""
        return self._real.acquire(False) and self._pass_to_waiting_thread(is_from_outside=True)

    def _pass_to_waiting_thread(self, *, is_from_outside: bool = False) -> bool:
        while self._waiting:
            heir = self._waiting.pop(0)
            if heir.is_waiting:  # else its time-out has just woken it
                self._holder = heir
                self._steps.host.send_request(WakeTask(heir.number, from_outside=is_from_outside))
                return True
        self._holder = None
        self._real.release()
        return False


class RankRLock(_PyRLock):  # type: ignore[misc]  # without a type
    """The lock that `threading.RLock()` returns on a rank's thread: Python's class on top of a `RankLock`."""

    def __init__(
        self, steps: LockSteps | None = None, maker: RankThread | None = None, *, is_external: bool = False
    ) -> None:
        """`steps` and `maker` are None for a class that a library derives from an RLock's type, as joblib does."""
        if steps is None or maker is None:
            self._block: Any = threading.Lock()
        else:
            self._block = RankLock(steps, maker, is_external=is_external)
        self.is_external = is_external
        self._owner = None
        self._count = 0
        self.made = self._block.maker_and_number if isinstance(self._block, RankLock) else ()
        """The number of the thread that made the lock, and the lock's number in that thread."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock as `threading.RLock` does. Also returns True if the caller holds the lock already."""
        return bool(super().acquire(blocking, timeout))

    __enter__ = acquire

    def release(self) -> None:
        """Release the lock.

        A thread that is ended early while it waits for a condition variable does not hold the lock.
        """
        block = self._block
        if self._owner == threading.get_ident() or not (isinstance(block, RankLock) and block.is_caller_unwinding):
            super().release()


def wrap_event_is_set(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return the replacement of `threading.Event.is_set`, which reads the event's flag without a lock."""

    def is_set_after_choice_point(event: Any) -> bool:
        lock = event._cond._lock
        if isinstance(lock, RankLock):
            lock.choice_point_before_read(is_in_vain=not original(event))
        return original(event)

    return is_set_after_choice_point


class LockMakers:
    """The replacements of `threading.Lock` and similar functions, for one run."""

    def __init__(self, steps: LockSteps, *, owns_modules: bool) -> None:
        """`owns_modules`: a lock made during the import of one of the program's own modules belongs to the rank."""
        self._steps = steps
        self._outlasts = waiting.is_importing_library if owns_modules else waiting.is_importing
        """A function: True for a frame during an import, where objects that are made may outlive the run."""

    def wrap_condition_lock(self, original: Any) -> Any:
        """Replace the lock at which a condition variable waits by a `RankLock` if the variable's own is simulated."""

        def allocate_lock() -> Any:
            me = self._steps.calling_rank_thread()
            lock = None if me is None else getattr(sys._getframe(1).f_locals.get("self"), "_lock", None)
            if me is None or not isinstance(lock, (RankLock, RankRLock)):
                return original()
            return RankLock(self._steps, me, is_inner=True, is_external=lock.is_external)

        return allocate_lock

    def wrap_maker(self, make: Callable[..., Any], kind: str, original: Any) -> Any:
        """Replace `threading.Lock`, `threading.RLock` or `queue.SimpleQueue`, of which `kind` is the name."""
        steps = self._steps

        def make_for_caller(caller: FrameType, arguments: tuple[Any, ...]) -> Any:
            me = steps.calling_rank_thread()
            if me is None or self._outlasts(caller):
                return original(*arguments)
            if steps.host.is_observed:
                steps.report_use(waiting.class_that_makes_lock(caller) or kind)
            return make(steps, me, *arguments, is_external=waiting.module_that_makes_lock(caller).startswith(OUTSIDE))

        if isinstance(original, type):  # SimpleQueue, and from Python 3.13 on Lock: for annotations and isinstance
            new = {"__new__": lambda cls, *arguments: make_for_caller(sys._getframe(1), arguments)}
            replacement: Any = type(original.__name__, (), new)
        else:
            replacement = wraps(original)(lambda *arguments: make_for_caller(sys._getframe(1), arguments))
        replacement.__module__ = "queue" if kind == "SimpleQueue" else "threading"  # where pickle finds it
        replacement.__qualname__ = kind
        return replacement
