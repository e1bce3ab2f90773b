"""Who ends a thread's part in an execution: the thread itself, or one who watches it and interrupts it before."""

from __future__ import annotations

import ctypes
from _thread import allocate_lock as _allocate_lock
from threading import get_ident


class ThreadExit:
    """The end of one thread. Whoever claims it first has it; until then the thread can be interrupted."""

    __slots__ = ("_error", "_lock", "_owner")

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error
        self._owner = 0
        self._lock = _allocate_lock()

    def interrupt(self, ident: int) -> None:
        """Raise the error in the thread at its next bytecode. Code blocked in C does not notice before then."""
        with self._lock:
            if ident and not self._owner:
                _raise_in(ident, self._error)

    def claim(self) -> bool:
        """True if the end is the caller's; then it alone gives the baton away, and no interrupt cuts it short.

        One that is under way is raised in here: the thread claims again then.
        """
        with self._lock:
            self._owner = self._owner or get_ident()
        for _ in range(2):  # an exception that waits is raised where a loop goes back
            pass
        return self._owner == get_ident()


class _Taken(BaseException):
    """What this thread interrupts itself with."""


def stop_signalling() -> None:
    """Let the interpreter forget that a thread is to be interrupted which does not notice, until that one runs again.

    Python 3.11 looks for an exception to raise, in whatever thread, as long as one is not taken; and while it looks, a
    trace function (of coverage, a debugger) is never left. To take one ends the look.
    """
    try:
        _raise_in(get_ident(), _Taken)
        for _ in range(1_000_000):  # it is taken at one of the next turns
            pass
    except _Taken:
        pass


def _raise_in(ident: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))
