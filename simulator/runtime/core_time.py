"""Measures how long a thread or process has computed or has waited for a free core."""

from __future__ import annotations

import time


def core_seconds(clock: int, schedstat: str) -> float:
    """Return the CPU seconds of a clock plus the seconds spent waiting for a core, from a `schedstat` file of Linux.

    The file has the nanoseconds on a core, the nanoseconds spent waiting for one, and the number of time slices
    (Linux, Documentation/scheduler/sched-stats.rst). Without the file the waiting time counts as 0. Raises OSError if
    the system does not know the clock.
    """
    return time.clock_gettime(clock) + _without_a_core(schedstat)


def _without_a_core(schedstat: str) -> float:
    try:
        with open(schedstat, encoding="ascii") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):  # a system that does not count them
        return 0.0
