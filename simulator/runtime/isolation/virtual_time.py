"""Virtual time: replaces the clocks of the `time` module inside ranks.

On a rank's thread, the functions return virtual time, which starts at zero (`monotonic`, `perf_counter`) or at
2000-01-01T00:00:00Z (`time`), and `sleep` waits in virtual time. On any other thread, and in a process forked from a
rank (a DataLoader worker), they are the originals.

Computation takes no virtual time. But two readings of a clock by a rank are never equal: each is at least a microsecond
after the one before, so that a program does not divide by zero. The clock of the run does not advance with these.
The clocks of ranks differ, as those of processes do: each has an offset of its own, drawn once and for all.

`datetime.now`, `time.localtime()` and others that default to "now" name folders, which are to be new in each run: there
virtual time begins at the real second of the run's start.

Not covered, so in real time: functions bound before the simulation (`from time import sleep` in a module imported
earlier), CPU clocks, and waits other than sleeps, locks, asyncio and those of patches/outside_waits.py (`select`). A
real wait does not advance virtual time. So a loop that waits like that for a virtual deadline never ends.
"""

import ctypes
import gc
import operator
import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache, partial
from math import ceil, inf, nextafter
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from ddpsim.simulator.runtime.replaced import ReplacedAttributes

EPOCH_SECONDS = 946_684_800
"""2000-01-01T00:00:00Z: the value of `time.time` in a rank when the simulation starts."""

TICK_SECONDS = 1e-6
"""The least difference between two readings of a clock by one rank."""

LARGEST_OFFSET_SECONDS = 0.05
"""The most by which the clock of a rank differs from that of rank 0."""

NANOSECONDS = 1_000_000_000
LONGEST_SLEEP_SECONDS = 2**63 / NANOSECONDS
"""Longer sleeps do not fit into CPython's `PyTime_t`."""


def is_subprocess_wait(caller: FrameType) -> bool:
    """True for a caller in `subprocess`, which sleeps between two checks of a child process: that takes real time, and
    other ranks that are threads do not run meanwhile, as torch compiles that way under a lock of the process."""
    return caller.f_globals.get("__name__") == "subprocess"


@cache
def clock_offset(rank: int) -> float:
    """Return by how many seconds the clock of a rank differs from that of rank 0, equal in every run.

    Clocks of odd ranks are slow, so whole seconds differ, too. Offsets have few binary digits: sums of them are exact.
    """
    steps = random.Random(rank).randrange(1, int(LARGEST_OFFSET_SECONDS * 2**20)) if rank else 0
    return (-steps if rank % 2 else steps) / 2**20


def host_offset(number: int) -> float:
    """Return by how many seconds the time of day on a host differs from that on host 0, equal in every run.

    Hosts whose clocks are synchronised differ by milliseconds; here it is up to a second, so that it shows.
    """
    return 16 * clock_offset(number)


class VirtualTime:
    """Replaces the clocks of the `time` module for the threads of ranks, from `install` to `uninstall`."""

    def __init__(
        self,
        is_rank_thread: Callable[[], bool],
        sleep: Callable[[float], None],
        now: Callable[[], tuple[int, float]],
        waits_really: Callable[[FrameType], bool] = lambda caller: False,
        *,
        is_alike: bool = True,
        start: int = EPOCH_SECONDS,
        host_offset: float = 0.0,
    ) -> None:
        """`now` is a function that returns the running rank and its virtual seconds; `sleep` waits for virtual seconds.

        If `waits_really(caller)`, a sleep takes real time and no other rank runs. `is_alike`: ranks have equal clocks.
        `start` is the second at which `datetime.now` begins; the clock of the rank's host is `host_offset` ahead."""
        self._start, self._epoch = start + host_offset, EPOCH_SECONDS + host_offset
        self._is_alike = is_alike
        self._waits_really = waits_really
        self._is_rank_thread = is_rank_thread
        self._sleep = sleep
        self._now = now
        self._read: dict[tuple[int, str], float] = {}
        """The last reading of each rank, by rank and name of the clock."""
        self._replaced = ReplacedAttributes()

    def install(self) -> None:
        """Replace the clock functions of the `time` module."""
        assert not self._replaced, "installed twice"
        later, local, utc, text = self._next_clock_value, time.localtime, time.gmtime, time.strftime

        def moment() -> float:
            return self._start + later("time of day") if self._is_rank_thread() else time.time()

        virtual: dict[str, Callable[[], Any]] = {
            "localtime": lambda: local(moment()),
            "gmtime": lambda: utc(moment()),
            "monotonic": lambda: later("monotonic"),
            "monotonic_ns": lambda: round(later("monotonic_ns") * NANOSECONDS),
            "perf_counter": lambda: later("perf_counter"),
            "perf_counter_ns": lambda: round(later("perf_counter_ns") * NANOSECONDS),
            "time": lambda: self._epoch + later("time"),
            "time_ns": lambda: round(self._epoch * NANOSECONDS) + round(later("time_ns") * NANOSECONDS),
        }
        for name, clock in virtual.items():
            self._replaced.replace_attribute(time, name, partial(self._clock_for_ranks, clock))
        self._replaced.replace_attribute(time, "sleep", self._sleep_for_ranks)
        self._replaced.set_attribute(time, "strftime", staticmethod(lambda f, *at: text(f, *at or (time.localtime(),))))
        self._of_datetime = {name: vars(datetime)[name] for name in ("now", "utcnow")}

        def now(kind: type[datetime], tz: Any = None) -> datetime:
            return kind.fromtimestamp(moment(), tz)

        utcnow = classmethod(lambda kind: now(kind, timezone.utc).replace(tzinfo=None))
        _set_methods_of_datetime({"now": classmethod(now), "utcnow": utcnow})

    def _next_clock_value(self, clock: str) -> float:
        """Return the virtual time, a little later than all earlier readings of this clock by the rank."""
        rank, seconds = self._now()
        if not self._is_alike:
            offset = clock_offset(rank)
            offset = offset if clock.startswith("time") else abs(offset)  # the others are never below 0
            shown = seconds + offset
            seconds = shown if shown - offset >= seconds else nextafter(shown, inf)  # no sleep is shorter than asked
        last = self._read.get((rank, clock))
        self._read[rank, clock] = seconds = seconds if last is None else max(seconds, last + TICK_SECONDS)
        return seconds

    def uninstall(self) -> None:
        """Restore the clock functions of the `time` module. May be called twice."""
        if self._replaced:
            _set_methods_of_datetime(self._of_datetime)
        self._replaced.restore_attributes()

    def _clock_for_ranks(self, clock: Callable[[], Any], original: Callable[..., Any]) -> Callable[..., Any]:
        is_rank_thread = self._is_rank_thread

        def read(*time: float | None) -> Any:
            return clock() if is_rank_thread() and time in ((), (None,)) else original(*time)

        return staticmethod(read)  # not a method of a class that has it, as the original is none

    def _sleep_for_ranks(self, original: Callable[[float], None]) -> Callable[[float], None]:
        is_rank_thread, virtual_sleep, waits_really = self._is_rank_thread, self._sleep, self._waits_really

        def sleep(seconds: float, /) -> None:
            if is_rank_thread() and not waits_really(sys._getframe(1)):
                seconds = seconds if isinstance(seconds, float) else operator.index(seconds)
                if 0 <= seconds < LONGEST_SLEEP_SECONDS:
                    virtual_sleep(float(seconds))
                    return
            original(seconds)  # outside ranks; on a rank, for real waits and for the errors of invalid arguments

        return sleep


def _set_methods_of_datetime(methods: dict[str, Any]) -> None:
    """Set methods of the class itself: objects of another class would not be equal in type, nor in pickles."""
    gc.get_referents(datetime.__dict__)[0].update(methods)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


class SignalTimer:
    """The timer of `signal.setitimer` and `signal.alarm` in a rank's process, in virtual time: it rings as a request of
    the main thread ends, such as a sleep or a wait for a call, but not in a wait for a lock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self.due, self._interval = now, inf, 0.0

    def install(self, is_rank_thread: Callable[[], bool]) -> None:
        """Replace the functions that set the timer. Cannot be undone."""
        set_timer, replaced = partial(self._set, is_rank_thread, signal.setitimer), ReplacedAttributes()
        replaced.set_attribute(signal, "setitimer", set_timer)
        replaced.set_attribute(signal, "alarm", lambda seconds: ceil(set_timer(signal.ITIMER_REAL, seconds)[0]))

    def _set(self, is_rank_thread: Callable[[], bool], original: Any, which: int, seconds: float, *every: float) -> Any:
        if which != signal.ITIMER_REAL or not is_rank_thread():
            return original(which, seconds, *every)
        before = (0.0 if self.due == inf else max(self.due - self._now(), TICK_SECONDS)), self._interval
        self.due, self._interval = (self._now() + seconds if seconds else inf), sum(every)
        return before

    def ring(self) -> None:
        """Send the signal once, however often it was due."""
        step = self._interval
        self.due += ((self._now() - self.due) // step + 1) * step if step else inf
        signal.raise_signal(signal.SIGALRM)

    def sleep(self, sleep: Callable[[float], None], seconds: float) -> None:
        """Sleep by a function, and ring meanwhile."""
        end = self._now() + seconds
        while self.due < end and current_thread() is main_thread():
            sleep(max(self.due - self._now(), 0.0))
            seconds = max(end - self._now(), 0.0)
        sleep(seconds)
