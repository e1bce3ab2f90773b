"""How long a thread or process has computed, or has waited for a core to do so: on a busy machine it may have none."""

from __future__ import annotations

import time


def core_seconds(clock: int, schedstat: str) -> float:
    """CPU seconds by that clock, and those without a core by that file of Linux's; 0 of the latter where there is none.

    The file has nanoseconds with a core, nanoseconds in which it was to run and had none, and how often it got one:
    Linux, Documentation/scheduler/sched-stats.rst. Raises OSError where the system does not know the clock.
    """
    return time.clock_gettime(clock) + _without_a_core(schedstat)


def _without_a_core(schedstat: str) -> float:
    try:
        with open(schedstat, encoding="ascii") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):  # a system that does not count them
        return 0.0
