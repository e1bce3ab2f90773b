"""Locks between the threads of ranks: waiting for one hands the baton over.

Who asks first gets the lock first. Every order in which threads can get it is an order in which they ask, so nothing is
lost by that, and what is explored is the order of asking.

A lock that a rank made is a real one for everybody else: for threads outside the simulation, and after its end. One
that was made before the simulation, or while a module was imported, is nothing but real: a rank that waits for it
blocks with the baton in its hand, and is reported as `stuck`.
"""

from __future__ import annotations

import sys
import threading
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from ddpsim.simulator.accesses import Access, Mode, Object
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.requests import Block, Checkpoint, Note, Wake
from ddpsim.simulator.runtime.rank_thread import RankThread
from ddpsim.simulator.runtime.threads.lock_steps import LockSteps
from ddpsim.simulator.runtime.threads.waiting import is_callback, waited_for
from ddpsim.simulator.waits import LockWait

_PyRLock: Any = threading._PyRLock  # type: ignore[attr-defined]


class RankLock:
    """What `threading.Lock()` gives on the thread of a rank."""

    __slots__ = (
        "__weakref__",
        "_has_been_released",
        "_holder",
        "_is_inner",
        "_object",
        "_real",
        "_steps",
        "_waiting",
        "is_external",
    )

    def __init__(
        self, steps: LockSteps, maker: RankThread, *, is_inner: bool = False, is_external: bool = False
    ) -> None:
        """An inner lock is one that Python made for something else: only waiting for it is a step."""
        self.is_external = is_external
        """A library made it whose threads stay outside the simulation, which are the ones to give it back."""
        self._steps = steps
        self._real = allocate_lock()
        self._holder: RankThread | None = None
        """None if nobody has it, or somebody outside the simulation."""
        self._waiting: list[RankThread] = []
        """In the order in which they asked."""
        self._is_inner = is_inner
        self._has_been_released = False
        self._object: Object = ("lock", maker.number, maker.locks_made)
        maker.locks_made += 1

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as `threading.Lock.acquire` does; a time-out runs in virtual time."""
        me = self._steps.running()
        if me is None:
            return self._real.acquire(blocking, timeout)
        if timeout != -1 and (not blocking or not 0 <= timeout <= threading.TIMEOUT_MAX):
            return allocate_lock().acquire(blocking, timeout)  # which says what is wrong with it
        may_wait = blocking and timeout != 0
        self._ask(me, may_wait=may_wait)
        if self._real.acquire(False):
            self._holder = me
            if self._has_been_released:
                self._steps.acquire(me, self._object)
            return True
        if not may_wait:
            return False
        return self._wait(me, None if timeout == -1 else timeout)

    __enter__ = acquire

    def release(self) -> None:
        """Give the lock back: to who has waited longest, if anybody does."""
        me = self._steps.running()
        if me is None:
            self._holder = None
            self._real.release()
            return
        if not self._is_inner:
            self._steps.yield_before(me, (Access(self._object, Mode.CONTRIBUTE),))
        if not self._real.locked() and self._steps.host.is_unwinding(me):
            return  # it was carried out while it waited for the lock
        if not self._is_inner and self._holder is not me:  # as a signal, or in error: it matters who has it by now
            self._steps.touch(me, Access(self._object, Mode.READ), Access(self._object, Mode.WRITE))
        self._give_back(me)

    def locked(self) -> bool:
        """True if somebody has the lock. A look in vain lets the others run."""
        self.look(is_in_vain=self._real.locked())
        return self._real.locked()

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{'locked' if self._real.locked() else 'unlocked'} lock of a simulated rank>"

    # --- what Python's own classes ask of a lock ----------------------------------------------------------------------

    def _is_owned(self) -> bool:
        """For a condition, which would try to take the lock: that is no step of the program."""
        return self._real.locked()

    def _at_fork_reinit(self) -> None:
        self._real = allocate_lock()
        self._holder = None
        self._waiting.clear()

    @property
    def made(self) -> tuple[Any, ...]:
        """By which thread, and as which of its locks."""
        return self._object[1:]

    @property
    def is_asked_in_unwinding(self) -> bool:
        """True for a caller that is being carried out of its program."""
        me = self._steps.running()
        return me is not None and self._steps.host.is_unwinding(me)

    def look(self, *, is_in_vain: bool) -> None:
        """A choice point before a look at the lock, or at what it protects."""
        me = self._steps.running()
        if me is not None:
            access = Access(self._object, Mode.READ)
            self._steps.yield_before(me, (access,), is_in_vain=is_in_vain)
            self._steps.touch(me, access)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _ask(self, me: RankThread, *, may_wait: bool) -> None:
        """The choice point before asking for the lock. Who does not wait for it sees whether it is free."""
        if self._is_inner:
            return
        if self._steps.host.is_unwinding(me):
            if not is_callback(sys._getframe(2)):
                self._steps.host.ask(Checkpoint())  # which carries it out
            return
        ask, look = Access(self._object, Mode.WRITE), Access(self._object, Mode.READ)
        if may_wait:
            self._steps.yield_before(me, (ask,))
            self._steps.touch(me, ask)
        else:
            self._steps.yield_before(me, (look, ask), is_in_vain=self._real.locked())
            self._steps.touch(me, look, *(() if self._real.locked() else (ask,)))

    def _wait(self, me: RankThread, timeout_seconds: float | None) -> bool:
        """Let others run until the lock is handed over. False if the time-out came first."""
        if self._holder is None or self._steps.comes_from_outside(me, is_external=self.is_external):
            is_taken = self._real.acquire(True, -1 if timeout_seconds is None else timeout_seconds)
            self._holder = me if is_taken else self._holder
            return is_taken
        host = self._steps.host
        what, site = waited_for(sys._getframe(1))
        host.ask(Note(EventKind.WAIT, what))
        holder = None if self._is_inner else self._holder.number
        self._waiting.append(me)
        self._steps.waited.append(self)
        try:
            in_time: bool = host.ask(Block(LockWait(self._object, what, holder, site), timeout_seconds))
        except BaseException:
            if self._holder is me:  # it was handed over, and is not going to be used
                self._give_back(me)
            raise
        finally:
            self._steps.waited.remove(self)
            if me in self._waiting:
                self._waiting.remove(me)
        self._steps.touch(me, Access(self._object, Mode.CONTRIBUTE if in_time else Mode.READ))
        if not in_time and self._real.acquire(False):  # it was given back at the very moment, before this thread ran
            self._holder, in_time = me, True
        host.ask(Note(EventKind.DONE, what if in_time else f"{what} timed out"))
        return in_time

    def _give_back(self, me: RankThread) -> None:
        self._steps.touch(me, Access(self._object, Mode.CONTRIBUTE))
        self._has_been_released = self._steps.release(me, self._object) or self._has_been_released
        self._pass_on()

    def take_from_outside(self) -> bool:
        """Hand the lock to who has waited longest, if somebody outside the simulation gave it back."""
        return self._real.acquire(False) and self._pass_on(is_from_outside=True)

    def _pass_on(self, *, is_from_outside: bool = False) -> bool:
        while self._waiting:
            heir = self._waiting.pop(0)
            if heir.is_waiting:  # else its alarm has just woken it
                self._holder = heir
                self._steps.host.ask(Wake(heir.number, from_outside=is_from_outside))
                return True
        self._holder = None
        self._real.release()
        return False


class RankRLock(_PyRLock):  # type: ignore[misc]  # without a type
    """What `threading.RLock()` gives on the thread of a rank: Python's own, on a lock of ours."""

    def __init__(
        self, steps: LockSteps | None = None, maker: RankThread | None = None, *, is_external: bool = False
    ) -> None:
        """Of a class that a library derives from the type of one, as joblib does, it has no `steps`: the lock has."""
        if steps is None or maker is None:
            self._block: Any = threading.Lock()
        else:
            self._block = RankLock(steps, maker, is_external=is_external)
        self.is_external = is_external
        self._owner = None
        self._count = 0
        self.made = self._block.made if isinstance(self._block, RankLock) else ()
        """By which thread, and as which of its locks."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As that of `threading.RLock()`, which is native: to have it already is True, too."""
        return bool(super().acquire(blocking, timeout))

    __enter__ = acquire

    def release(self) -> None:
        """As Python's. Who is carried out while it waits for a condition has not got the lock back."""
        block = self._block
        if self._owner == threading.get_ident() or not (isinstance(block, RankLock) and block.is_asked_in_unwinding):
            super().release()


def is_set(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """For `threading.Event.is_set`, which looks without a lock."""

    def look(event: Any) -> bool:
        lock = event._cond._lock
        if isinstance(lock, RankLock):
            lock.look(is_in_vain=not original(event))
        return original(event)

    return look
