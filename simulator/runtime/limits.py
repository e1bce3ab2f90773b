"""Limits: watch a running execution from outside, and end it when it takes too long or does not come back.

The watcher is the caller's own thread, which has nothing else to do. A rank that computes is told from one that is
blocked in a lock, a socket or native code by the CPU time of its thread: the first may take as long as the budget has
seconds, the second is `stuck` after `Budget.stuck_seconds`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from simulator.budget import Budget
from simulator.diagnosis.situation import Situation
from simulator.runtime import outcome
from simulator.runtime.rank_thread import RankThread, RankUnwound
from simulator.runtime.scheduler import Scheduler
from simulator.verdict import Finding

_WATCH_SECONDS = 0.05
_GRACE_SECONDS = 1.0
"""How long a rank may take to notice that the execution is over before it is interrupted, and again before it is
abandoned."""


def run(
    scheduler: Scheduler,
    budget: Budget,
    *,
    report: Callable[[Finding], None],
    situation: Callable[[], Situation],
) -> None:
    """Start an execution and wait until it is over; a limit that passes ends it, and so does an interrupt (Ctrl-C)."""
    try:
        scheduler.start()
        _watch(scheduler, budget, report, situation)
    except BaseException:
        scheduler.end_from_outside()
        _drain(scheduler)
        raise


def _watch(
    scheduler: Scheduler, budget: Budget, report: Callable[[Finding], None], situation: Callable[[], Situation]
) -> None:
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
            report(outcome.stuck(rank, budget, situation()))
            scheduler.stop()
            return _drain(scheduler, grace_seconds=0.1)  # it has been asleep for long: it will not notice
        if now - start > budget.seconds:
            report(outcome.out_of_time(rank, budget))
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
