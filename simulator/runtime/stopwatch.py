"""Clocks for the limits of wall time: one that can be paused, and one that counts only the use of a core."""

import time
from time import monotonic  # bound here: inside a rank, `time.monotonic` is virtual


class Stopwatch:
    """Counts the wall-clock seconds since it was made, without those in which it was paused."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._stopped_at: float | None = None
        self._depth = 0

    def elapsed_seconds(self) -> float:
        """Return the seconds that have passed, without the pauses."""
        return (monotonic() if self._stopped_at is None else self._stopped_at) - self._began

    def pause(self) -> None:
        """Pause the clock until `unpause` has been called as often as `pause`."""
        self._depth += 1
        if self._depth == 1:
            self._stopped_at = monotonic()

    def unpause(self) -> None:
        """Undo one call of `pause`. After the last one the clock runs again."""
        self._depth -= 1
        if self._depth == 0 and self._stopped_at is not None:
            self._began += monotonic() - self._stopped_at
            self._stopped_at = None


def core_seconds(clock: int, schedstat: str) -> float:
    """Return the CPU seconds of a thread or process plus the seconds for which it waited for a free core.

    `clock` is the number of its CPU clock, `schedstat` its file in /proc: the nanoseconds on a core, the nanoseconds
    spent waiting for one, and the number of time slices (Linux, Documentation/scheduler/sched-stats.rst). Without the
    file the waiting time counts as 0. Raises OSError if the system does not know the clock.
    """
    return time.clock_gettime(clock) + _seconds_waiting_for_core(schedstat)


def has_child_processes(process: int | str, thread: int) -> bool:
    """Return True if a thread of a process ("self" for this one) has started child processes that have not ended."""
    try:
        with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as children:
            return bool(children.read().strip())
    except OSError:
        return False


def _seconds_waiting_for_core(schedstat: str) -> float:
    try:
        with open(schedstat, encoding="ascii") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):  # a system that does not count them
        return 0.0
