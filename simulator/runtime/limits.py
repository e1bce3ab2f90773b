"""Limits: watch a running execution from outside, and end it when it takes too long or does not come back.

The watcher is the caller's own thread, which has nothing else to do. A rank that computes is told from one that is
blocked in a lock, a socket or native code by the CPU time of its thread: the first may take as long as the budget has
seconds, the second is `stuck` after `Budget.stuck_seconds`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable

from simulator.budget import Budget
from simulator.runtime.rank_thread import RankThread, RankUnwound
from simulator.runtime.scheduler import Scheduler
from simulator.verdict import Code, Finding

_WATCH_SECONDS = 0.05
_GRACE_SECONDS = 1.0
"""How long a rank may take to notice that the execution is over before it is interrupted, and again before it is
abandoned."""


def run(scheduler: Scheduler, budget: Budget, report: Callable[[Finding], None]) -> None:
    """Start an execution and wait until it is over; a limit that passes ends it, and so does an interrupt (Ctrl-C)."""
    try:
        scheduler.start()
        _watch(scheduler, budget, report)
    except BaseException:
        scheduler.end_from_outside()
        _drain(scheduler)
        raise


def _watch(scheduler: Scheduler, budget: Budget, report: Callable[[Finding], None]) -> None:
    start = time.monotonic()
    seen: tuple[object, ...] = ()
    seen_at = start
    while not scheduler.over.acquire(timeout=_WATCH_SECONDS):
        now = time.monotonic()
        rank = scheduler.running
        progress = (scheduler.steps, rank and rank.rank, rank and _cpu_ticks(rank))
        if progress != seen:
            seen, seen_at = progress, now
        if rank is not None and now - seen_at > budget.stuck_seconds:
            report(_stuck(rank, budget))
            scheduler.stop()
            return _drain(scheduler, grace_seconds=0.1)  # it has been asleep for long: it will not notice
        elif now - start > budget.seconds:
            report(_out_of_time(rank, budget))
        else:
            continue
        scheduler.stop()
        return _drain(scheduler)


def _drain(scheduler: Scheduler, grace_seconds: float = _GRACE_SECONDS) -> None:
    """Wait until every rank is out of its program; interrupt one that does not notice, and then leave it behind."""
    rank = scheduler.running
    waited_since = time.monotonic()
    interrupted = False
    while not scheduler.has_ended and not scheduler.over.acquire(timeout=_WATCH_SECONDS / 5):
        if scheduler.running is not rank:
            rank, waited_since, interrupted = scheduler.running, time.monotonic(), False
        elif rank is not None and time.monotonic() - waited_since > grace_seconds:
            if interrupted:
                scheduler.abandon(rank)
            else:
                interrupted, waited_since = True, time.monotonic()
                _interrupt(rank)


def _interrupt(rank: RankThread) -> None:
    """Raise RankUnwound in the rank's thread at its next bytecode. Code blocked in C does not notice before then."""
    if rank.ident:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(rank.ident), ctypes.py_object(RankUnwound))


def _cpu_ticks(rank: RankThread) -> float:
    """CPU seconds of the rank's thread; where the platform cannot tell, wall time, so that nobody counts as stuck."""
    try:
        return round(time.clock_gettime(time.pthread_getcpuclockid(rank.ident)), 3)
    except (AttributeError, OSError):
        return time.monotonic()


def stack_of(rank: RankThread) -> str:
    """The rank's Python stack, innermost call last, without our own frames at its start."""
    frame = sys._current_frames().get(rank.ident)
    if frame is None:
        return "    (no Python stack)\n"
    frames = [f for f in traceback.extract_stack(frame) if f.filename not in _OWN_FILES]
    return "".join(traceback.format_list(frames))


_OWN_FILES = frozenset({threading.__file__})


def _stuck(rank: RankThread, budget: Budget) -> Finding:
    summary = f"rank {rank.rank} has been blocked outside the simulation for {budget.stuck_seconds:g} s"
    text = (
        f"STUCK  {Code.STUCK}\n  {summary}\n"
        "  cause   it waits in a lock, a socket or native code that only another rank or process can end\n"
        "  try     use torch.distributed, or its store, to wait for other ranks; if this was only slow, raise "
        f"Budget(stuck_seconds=...)\n  stack\n{stack_of(rank)}"
    )
    return Finding(Code.STUCK, (rank.rank,), summary, text.rstrip())


def _out_of_time(rank: RankThread | None, budget: Budget) -> Finding:
    summary = f"the run took longer than {budget.seconds:g} s of wall time"
    text = f"UNKNOWN  {Code.BUDGET}\n  {summary}\n  try     raise Budget(seconds=...), or give the ranks less to do"
    if rank is not None:
        text += f"\n  stack of rank {rank.rank}, which was running\n{stack_of(rank)}"
    return Finding(Code.BUDGET, () if rank is None else (rank.rank,), summary, text.rstrip())
