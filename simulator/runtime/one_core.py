"""All ranks on one core.

Exactly one rank runs at a time, so a second core is of no use to them; and a switch to a thread on another core has
to wake that core up and warm its caches. Measured on 2 cores, 32 ranks in DDP: 10 % of the run on a quiet machine, a
third on a busy one.

Their threads are scheduled as SCHED_BATCH, too, which is about this only: a thread that is woken does not interrupt the
one that wakes it (sched(7)). Else the rank that gets the baton would run at once, find that the giver still holds the
interpreter's lock, and sleep again. Measured with 4 to 32 ranks: 5 % of the run in DDP, a quarter in bare barriers.

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
from functools import cache
from typing import NamedTuple
from weakref import WeakKeyDictionary


class _Placement(NamedTuple):
    """Where a thread may run, and how the system's scheduler treats it."""

    cores: set[int]
    policy: int

    def take(self) -> None:
        """Place the calling thread so. Raises OSError where the platform forbids the cores."""
        os.sched_setaffinity(0, self.cores)
        with suppress(OSError):
            if os.sched_getscheduler(0) != self.policy:
                os.sched_setscheduler(0, self.policy, os.sched_param(0))


_usual: WeakKeyDictionary[threading.Thread, _Placement] = WeakKeyDictionary()
"""The threads that were put on one core, and the placement of the thread that started them."""


@contextmanager
def threads_started_here_share_a_core() -> Iterator[None]:
    """Threads that the caller starts inside stay on the core that it is on now; it may move again afterwards.

    Does nothing where the platform has no such call, or forbids it.
    """
    core = _current_core()
    if core is None:
        yield
        return
    try:
        usual = _Placement(os.sched_getaffinity(0), os.sched_getscheduler(0))
        policy = os.SCHED_BATCH if usual.policy == os.SCHED_OTHER else usual.policy
        _Placement({core}, policy).take()
    except OSError:
        yield
        return
    others = set(threading.enumerate())
    try:
        yield
    finally:
        usual.take()
        _usual.update((thread, usual) for thread in threading.enumerate() if thread not in others)


def shares_core_of_starter(thread: threading.Thread) -> None:
    """A thread that the caller has started shares its core, and what it may fork gets the same cores back."""
    usual = _usual.get(threading.current_thread())
    if usual is not None:
        _usual[thread] = usual


def _current_core() -> int | None:
    """The core the calling thread runs on; None where the platform does not tell."""
    if not hasattr(os, "SCHED_BATCH"):
        return None
    try:
        core: int = _libc().sched_getcpu()
    except (AttributeError, OSError):
        return None
    return core if core in os.sched_getaffinity(0) else None


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _give_cores_back() -> None:
    """In a process just forked, whose only thread is a copy of the one that forked it."""
    usual = _usual.get(threading.current_thread())
    if usual is not None:
        with suppress(OSError):
            usual.take()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_cores_back)  # for good: it does nothing outside ranks
