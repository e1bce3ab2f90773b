"""When is a job hung: if nothing in it has moved for a while.

gloo itself only knows a time-out, and a short one mistakes a slow machine for a hang: the rank that has not come yet
may be waiting for a processor. The kernel knows better. A thread that could run is not asleep, whether it has a
processor or waits for one; if all threads of all ranks sleep whenever one looks, they wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_INTERVALS = 5
"""Into how many the time is divided that a job has to be still for. gloo's own threads wake every few milliseconds to
look around; that one of them is seen at it delays the conclusion a little, and no more.
"""


class Stillness:
    """Whether nothing moves for a while; for one who looks at intervals, or later than that."""

    def __init__(self, still_seconds: float) -> None:
        self.interval_seconds = still_seconds / _INTERVALS
        self._looks = 0

    def look(self, *, asleep: bool) -> bool:
        """Take note of whether all sleep at this moment; true if they have for long enough."""
        # Looks are counted, as one who comes late has not seen what was meanwhile.
        self._looks = self._looks + 1 if asleep else 0
        return self._looks > _INTERVALS


def all_asleep(processes: Iterable[int]) -> bool:
    """Whether every thread of these processes sleeps. One that is ending does not: it will be heard of."""
    return all(_is_asleep(process) for process in processes)


def _is_asleep(process: int) -> bool:
    try:
        return all(_state(thread) == "S" for thread in Path(f"/proc/{process}/task").iterdir())
    except OSError:
        return False


def _state(thread: Path) -> str:
    # The state follows the name, which stands in parentheses and may hold anything.
    return (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
