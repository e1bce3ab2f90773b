"""The virtual clock of a run: its time advances only when no rank can run."""

import heapq


class VirtualClock:
    """The virtual seconds since the run's start, and the alarms of sleeping ranks. A rank has one alarm at most."""

    def __init__(self) -> None:
        self.now = 0.0
        self.outside = 0.0
        """The real seconds that have passed beside, in waits for what is outside the simulation that are over. Calls
        time out by `now` and these together."""
        self._alarms: list[tuple[float, int, int]] = []
        self.live: dict[int, int] = {}
        """For each rank, the number of its valid alarm. All other alarms in the heap are cancelled."""
        self._order = 0

    def set_alarm(self, rank: int, delay_seconds: float) -> None:
        """Wake `rank` after `delay_seconds`; this replaces its previous alarm."""
        self._order += 1
        self.live[rank] = self._order
        heapq.heappush(self._alarms, (self.now + max(0.0, delay_seconds), self._order, rank))

    def cancel_alarm(self, rank: int) -> None:
        """Remove the alarm of `rank`, if it has one."""
        self.live.pop(rank, None)

    def advance_to_next_alarm(self) -> list[int]:
        """Advance the clock to the next alarm, and return the ranks that it wakes, in order; [] without alarms."""
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

    def add_seconds(self, seconds: float) -> None:
        """Advance the clock by `seconds`, for a rank that polls while no other rank can run."""
        self.now += seconds

    def has_due_alarm(self) -> bool:
        """Return True if the time of an alarm has come; `add_seconds` may cause this."""
        time = self.next_alarm()
        return time is not None and time <= self.now

    def next_alarm(self) -> float | None:
        """Return the time of the next alarm; None if there is none."""
        while self._alarms and self.live.get(self._alarms[0][2]) != self._alarms[0][1]:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None
