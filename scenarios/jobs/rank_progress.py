"""Whether a rank gets on: what its process shows of that, and for how long it has shown no change."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from ddpsim.scenarios.jobs import recorder

BUSY_SHARE = 0.1
"""A process that uses so much of a core is at work: waiting uses next to nothing."""
PATIENCE = 6
"""So many time-outs has a line that computes, and so have the ranks that wait for one that computes."""


class Clock:
    """The seconds in which this process was there to look.

    Between two looks at most `most` seconds count: nobody stands still in a process that is stopped, or on a machine
    that is suspended.
    """

    def __init__(self, most: float, source: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._source = source
        self._passed = 0.0
        self._looked = source()

    def now(self) -> float:
        """How many have passed."""
        looked = self._source()
        self._passed += min(looked - self._looked, self._most)
        self._looked = looked
        return self._passed


class Unchanged:
    """How long a value has stayed the same."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = 0.0

    def seconds(self, value: object, now: float) -> float:
        """For how long it has been `value`."""
        if value != self._value:
            self._value, self._since = value, now
        return now - self._since


class RankProgress:
    """What the main thread of this process shows, for another thread that looks at it every `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self._main = threading.main_thread().ident or 0
        self._clock = Clock(2 * interval)
        self._work = _Work()
        self._asleep = Unchanged()
        self._computing = Unchanged()

    def idle_seconds(self) -> tuple[float, float]:
        """For how long it has neither got on nor computed; and for how long not got on, as far as that can be seen.

        It gets on if a call begins or completes; and while none is in flight, with every instruction. Who computes, or
        falls asleep again and again, gets on with every line only: a loop that never ends is one line for ever, a large
        operation is one for long, and a loop of messages, which are not recorded, may be seen at one line only.
        """
        recording = recorder.recording()
        frames = [] if recording.in_flight else self._frames()
        instructions = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        lines = tuple((id(frame.f_code), frame.f_lineno) for frame in frames)
        now = self._clock.now()
        asleep = self._asleep.seconds((recording, instructions, self._work.turns(), _sleeps()), now)
        return asleep, self._computing.seconds((recording, lines), now)

    def _frames(self) -> list[FrameType]:
        return [frame for frame, _ in traceback.walk_stack(sys._current_frames().get(self._main))]


def _sleeps() -> int:
    """How often the main thread has fallen asleep; 0 where there is no /proc to tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/status", encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith("voluntary_ctxt_switches:")]
        return int(lines[0].split()[1])
    except (OSError, LookupError, ValueError):
        return 0


class _Work:
    """Whether the process computes."""

    def __init__(self) -> None:
        self._turns = 0
        self._looked = self._used = 0.0

    def turns(self) -> int:
        """At how many looks it had used the processor since the one before."""
        now = time.monotonic()
        used = time.process_time() - time.thread_time()  # without the watch itself
        if used - self._used > BUSY_SHARE * (now - self._looked):
            self._turns += 1
        self._looked, self._used = now, used
        return self._turns
