"""Pins the threads of all ranks to one CPU core.

Exactly one rank runs at a time, so ranks have no use for a second core, and a switch to a thread on another core has to
wake that core and warm its caches. Measured on 2 cores with 32 ranks in DDP: 10 % of the run on a quiet machine, a
third on a busy one.

The threads are also scheduled as SCHED_BATCH: a woken thread then does not preempt the one that wakes it (sched(7)).
Otherwise the rank that gets the baton (the right to run) would run at once, find that the other thread still holds the
interpreter's lock, and sleep again. Measured with 4 to 32 ranks: 5 % of the run in DDP, a quarter in bare barriers.

A process forked from such a thread (a DataLoader worker) gets all cores back, since it runs in parallel with the ranks.
Anything else that a rank starts (`subprocess`, multiprocessing by "spawn", threads of libraries) inherits the one core.
The rank itself sees one core, so torch warns about more than one worker.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary


class _CorePlacement(NamedTuple):
    """The cores on which a thread may run, and its scheduling policy."""

    cores: set[int]
    policy: int

    def apply_to_thread(self) -> None:
        """Apply this placement to the calling thread. Raises OSError where the platform forbids the cores."""
        os.sched_setaffinity(0, self.cores)
        with suppress(OSError):
            if os.sched_getscheduler(0) != self.policy:
                os.sched_setscheduler(0, self.policy, os.sched_param(0))


_usual: WeakKeyDictionary[threading.Thread, _CorePlacement] = WeakKeyDictionary()
"""For each thread that was pinned to one core: on which cores the thread that started it may run, and how."""


@contextmanager
def threads_started_here_share_a_core() -> Iterator[None]:
    """A context in which threads that the caller starts are pinned to its current core.

    Afterwards the caller may move again. Does nothing where the platform does not support or permit pinning.
    """
    core = _current_core()
    if core is None:
        yield
        return
    try:
        usual = _CorePlacement(os.sched_getaffinity(0), os.sched_getscheduler(0))
        policy = os.SCHED_BATCH if usual.policy == os.SCHED_OTHER else usual.policy
        _CorePlacement({core}, policy).apply_to_thread()
    except OSError:
        yield
        return
    others = set(threading.enumerate())
    try:
        yield
    finally:
        usual.apply_to_thread()
        _usual.update((thread, usual) for thread in threading.enumerate() if thread not in others)


def record_shared_core(thread: threading.Thread) -> None:
    """Record that a thread is pinned to the caller's core, so that processes forked from it get all cores back."""
    usual = _usual.get(threading.current_thread())
    if usual is not None:
        _usual[thread] = usual


def _current_core() -> int | None:
    """Return the core that the calling thread runs on; None where the platform has no function for that."""
    if not hasattr(os, "SCHED_BATCH"):
        return None
    try:
        core: int = ctypes.pythonapi.sched_getcpu()  # of the C library
    except (AttributeError, OSError):
        return None
    return core if core in os.sched_getaffinity(0) else None


def _restore_cores_after_fork() -> None:
    """Let a forked process use all cores again; its only thread is a copy of the pinned thread that forked."""
    usual = _usual.get(threading.current_thread())
    if usual is not None:
        with suppress(OSError):
            usual.apply_to_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_cores_after_fork)  # cannot be undone; does nothing outside ranks
