"""The virtual clock: time that moves only when nobody is enabled."""

from __future__ import annotations

import heapq


class VirtualClock:
    """Seconds since the start of the execution, and the alarms that will move it.

    An alarm belongs to a rank; a rank has at most one at a time, since it can wait for one thing only.
    """

    __slots__ = ("_alarms", "_order", "live", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._alarms: list[tuple[float, int, int]] = []
        self.live: dict[int, int] = {}
        """The ranks that have an alarm, and the number of each: others in the heap are forgotten ones."""
        self._order = 0

    def set_alarm(self, rank: int, delay_seconds: float) -> None:
        """Wake `rank` `delay_seconds` from now; replaces its former alarm."""
        self._order += 1
        self.live[rank] = self._order
        heapq.heappush(self._alarms, (self.now + max(0.0, delay_seconds), self._order, rank))

    def cancel(self, rank: int) -> None:
        """Forget the alarm of `rank`, if it has one."""
        self.live.pop(rank, None)

    def advance(self) -> list[int]:
        """Move to the next alarm and return the ranks it wakes, in the order of their alarms; [] if there is none."""
        ranks: list[int] = []
        while self._alarms:
            time, order, rank = self._alarms[0]
            if self.live.get(rank) != order:
                heapq.heappop(self._alarms)
            elif ranks and time > self.now:
                break
            else:
                heapq.heappop(self._alarms)
                del self.live[rank]
                self.now = max(self.now, time)
                ranks.append(rank)
        return ranks

    def tick(self, seconds: float) -> None:
        """Move on by `seconds`, for a rank that polls while nobody else is enabled."""
        self.now += seconds

    def due(self) -> bool:
        """True if an alarm lies in the past (after a tick)."""
        while self._alarms and self.live.get(self._alarms[0][2]) != self._alarms[0][1]:
            heapq.heappop(self._alarms)
        return bool(self._alarms) and self._alarms[0][0] <= self.now
