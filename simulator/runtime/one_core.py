"""All ranks on one core.

Exactly one rank runs at a time, so a second core is of no use to them; and a hand-over to a thread on another core has
to wake that core up and warm its caches. Measured on 2 cores, 32 ranks in DDP: 10 % of the run on a quiet machine, a
third on a busy one.

A process that is forked from such a thread (a worker of a DataLoader) gets all cores back, since it does run beside the
ranks. What a rank starts otherwise (`subprocess`, multiprocessing by "spawn", threads of libraries) inherits the core;
and the rank itself sees one core, of which torch makes a warning for more than one worker.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

_all_cores: WeakKeyDictionary[threading.Thread, set[int]] = WeakKeyDictionary()
"""The threads that were put on one core, and the cores of the thread that started them."""


@contextmanager
def threads_started_here_share_a_core() -> Iterator[None]:
    """Threads that the caller starts inside stay on the core that it is on now; it may move again afterwards.

    Does nothing where the platform has no such call, or forbids it.
    """
    core = _current_core()
    if core is None:
        yield
        return
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        yield
        return
    others = set(threading.enumerate())
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        _all_cores.update((thread, allowed) for thread in threading.enumerate() if thread not in others)


def shares_core_of_starter(thread: threading.Thread) -> None:
    """A thread that the caller has started shares its core, and what it may fork gets the same cores back."""
    cores = _all_cores.get(threading.current_thread())
    if cores is not None:
        _all_cores[thread] = cores


def _current_core() -> int | None:
    """The core the calling thread runs on; None where the platform does not tell."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        core: int = ctypes.CDLL(None).sched_getcpu()
    except (AttributeError, OSError):
        return None
    return core if core in os.sched_getaffinity(0) else None


def _give_cores_back() -> None:
    """In a process just forked, whose only thread is a copy of the one that forked it."""
    cores = _all_cores.get(threading.current_thread())
    if cores is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, cores)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_cores_back)  # for good: it does nothing outside ranks
