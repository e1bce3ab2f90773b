"""Decides what ends a thread's part in an execution: the thread itself, or the watcher that interrupts it."""

from __future__ import annotations

import ctypes
from _thread import allocate_lock as _allocate_lock
from threading import get_ident


class ThreadExit:
    """The end of one thread. The first caller of `claim` owns it; until then the thread can be interrupted."""

    __slots__ = ("_error", "_lock", "_owner")

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error
        self._owner = 0
        self._lock = _allocate_lock()

    def interrupt(self, ident: int) -> None:
        """Raise the error in the thread at its next bytecode. A thread blocked in C code does not notice before."""
        with self._lock:
            if ident and not self._owner:
                _raise_in(ident, self._error)

    def claim(self) -> bool:
        """Return True if the caller owns the end: it alone gives the baton away, and is not interrupted any more.

        An interrupt that is already pending is raised in here; the thread then calls this again.
        """
        with self._lock:
            self._owner = self._owner or get_ident()
        for _ in range(2):  # a pending exception is raised where a loop jumps back
            pass
        return self._owner == get_ident()


class _Taken(BaseException):
    """The exception with which this thread interrupts itself."""


def stop_signalling() -> None:
    """Clear the interpreter's flag of a pending interrupt whose thread does not run.

    As long as an asynchronous exception is pending in any thread, Python 3.11 checks for it at each bytecode, and a
    trace function (of coverage, a debugger) never returns. Raising one in this thread clears the flag.
    """
    try:
        _raise_in(get_ident(), _Taken)
        for _ in range(1_000_000):  # it is raised in one of the next iterations
            pass
    except _Taken:
        pass


def _raise_in(ident: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))
