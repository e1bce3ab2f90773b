"""The clocks of the `time` module, inside ranks.

Each function of the module is replaced while a simulation runs. Called on a rank's thread it tells virtual time, which
starts at zero (`monotonic`, `perf_counter`) or at 2000-01-01T00:00:00Z (`time`), and `sleep` is a wait in virtual time;
on any other thread, and in a process forked from a rank, it is the original, so the host, the machinery around the
ranks, and the workers of a DataLoader keep real time.

Nothing a rank computes takes virtual time; but no two readings of a clock by a rank are equal, as they hardly are
elsewhere: each comes at least a microsecond after the one before, so nobody divides by no time at all. The clock of the
execution does not notice.

Not covered: functions bound before the simulation (`from time import sleep` in a module that is imported already),
clocks read by native code (`datetime.now`, `time.localtime()` and the others that take "now" as their default), CPU
clocks, and waits that are neither a sleep nor made of a rank's locks (`select`), except those of asyncio: they take
real time. So what waits like that until the virtual clock shows some time waits in vain: time-outs of multiprocessing
(`Queue.get(timeout=...)`) end in the budget of the run.
"""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

from ddpsim.simulator.runtime.replaced import Replaced

EPOCH_SECONDS = 946_684_800
"""2000-01-01T00:00:00Z: what `time.time` says in a rank when the simulation starts."""

TICK_SECONDS = 1e-6
"""So much lies between two readings of a rank, at least."""

NANOSECONDS = 1_000_000_000
LONGEST_SLEEP_SECONDS = 2**63 / NANOSECONDS
"""More does not fit into CPython's `PyTime_t`."""


def waits_for_process(caller: FrameType) -> bool:
    """True for `subprocess`, which sleeps from one look at a child to the next.

    The child takes real time, and in virtual time its time-out would pass at once. Where ranks are threads the others
    do not run meanwhile, as they do not where a wait for a child has no time-out: torch compiles like that, and holds a
    lock of the process.
    """
    return caller.f_globals.get("__name__") == "subprocess"


class VirtualTime:
    """Replaces the clocks of the `time` module for the threads of ranks, from `install` to `uninstall`."""

    def __init__(
        self,
        is_rank_thread: Callable[[], bool],
        sleep: Callable[[float], None],
        now: Callable[[], tuple[int, float]],
        waits_really: Callable[[FrameType], bool] = lambda caller: False,
    ) -> None:
        """Take `now`, the running rank and its virtual seconds, and `sleep`, which waits for virtual seconds.

        A sleep whose caller `waits_really` takes real time, and lets nobody else run.
        """
        self._waits_really = waits_really
        self._is_rank_thread = is_rank_thread
        self._sleep = sleep
        self._now = now
        self._read: dict[tuple[int, str], float] = {}
        """What each rank has read last, by the name of the clock."""
        self._replaced = Replaced()

    def install(self) -> None:
        """Replace the functions."""
        assert not self._replaced, "installed twice"
        later = self._later
        virtual: dict[str, Callable[[], float]] = {
            "monotonic": lambda: later("monotonic"),
            "monotonic_ns": lambda: round(later("monotonic_ns") * NANOSECONDS),
            "perf_counter": lambda: later("perf_counter"),
            "perf_counter_ns": lambda: round(later("perf_counter_ns") * NANOSECONDS),
            "time": lambda: EPOCH_SECONDS + later("time"),
            "time_ns": lambda: EPOCH_SECONDS * NANOSECONDS + round(later("time_ns") * NANOSECONDS),
        }
        for name, clock in virtual.items():
            self._replaced.replace(time, name, partial(self._on_ranks, clock))
        self._replaced.replace(time, "sleep", self._sleep_on_ranks)

    def _later(self, clock: str) -> float:
        """The time, after all that the rank has read from this clock."""
        rank, seconds = self._now()
        last = self._read.get((rank, clock))
        self._read[rank, clock] = seconds = seconds if last is None else max(seconds, last + TICK_SECONDS)
        return seconds

    def uninstall(self) -> None:
        """Put the functions back. May be called twice."""
        self._replaced.put_back()

    def _on_ranks(self, clock: Callable[[], float], original: Callable[[], float]) -> Callable[[], float]:
        is_rank_thread = self._is_rank_thread

        def read() -> float:
            return clock() if is_rank_thread() else original()

        return read

    def _sleep_on_ranks(self, original: Callable[[float], None]) -> Callable[[float], None]:
        is_rank_thread, virtual_sleep, waits_really = self._is_rank_thread, self._sleep, self._waits_really

        def sleep(seconds: float, /) -> None:
            if is_rank_thread() and not waits_really(sys._getframe(1)):
                seconds = seconds if isinstance(seconds, float) else operator.index(seconds)
                if 0 <= seconds < LONGEST_SLEEP_SECONDS:
                    virtual_sleep(float(seconds))
                    return
            original(seconds)  # on a rank what it refuses, with the error it has for that, and real waits

        return sleep
