"""When is a job hung: if nothing in it has moved for a while.

gloo itself only knows a time-out, and a short one mistakes a slow machine for a hang: the rank that has not come yet
may be waiting for a processor. The kernel knows better. A thread that could run is not asleep, whether it has a
processor or waits for one; if all threads of all ranks sleep whenever one looks, they wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

LOOKS = 5
"""How often to look within the time that a job has to be still for. gloo's own threads wake every few milliseconds to
look around; that one of them is seen at it delays the conclusion a little, and no more.
"""


class Stillness:
    """Since when nothing has moved."""

    def __init__(self, still_seconds: float) -> None:
        self.interval_seconds = still_seconds / LOOKS
        self._still_seconds = still_seconds
        self._since: float | None = None

    def look(self, now: float, *, asleep: bool) -> bool:
        """Take note of whether all sleep at this moment; true if they have for long enough."""
        if not asleep:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= self._still_seconds


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
