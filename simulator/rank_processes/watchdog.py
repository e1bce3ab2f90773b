"""Watches a running rank that sends no message: limits of wall time, and ranks that are stuck."""

from __future__ import annotations

from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.states import Ending, Phase
from ddpsim.simulator.kernel.tasks import Task
from ddpsim.simulator.rank_processes.children import Child
from ddpsim.simulator.runtime.stopwatch import Stopwatch

_BUSY_SHARE = 0.1
"""A rank that computes uses more of a core than this; one that waits in a loop of its own, as sockets do, less."""

_LATE_SECONDS = 1.0
"""So long after the last look one is late: they come several times a second, unless the machine itself stands still."""

_GRACE_SECONDS = 1.0
"""How long a rank may take to notice that the execution is over before it is interrupted, and again before it is
killed."""


class Watchdog:
    """Watches the ranks of one execution, one at a time."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.clock = Stopwatch()
        self._start = self.clock.now()
        self._seen: tuple[int, float] = (-1, 0.0)
        """Which turn it is, by when it began, and the CPU time at which it was seen to compute last."""
        self._seen_at = self._looked_at = self._start
        self._interrupted_at: dict[int, float] = {}
        """When each rank was interrupted, which it is once: one that clings to its program is killed."""

    def look(self, me: Task, child: Child, since: float) -> None:
        """Check the limits for a rank that has sent nothing for a while; its turn began at `since`."""
        now = self.clock.now()
        if self._kernel.run.life.phase is Phase.RUNNING:
            self._check_limits(me, child, since, now)
        elif child.rank in self._interrupted_at:
            if now - self._interrupted_at[child.rank] > _GRACE_SECONDS:
                child.kill()
        elif now - since > _GRACE_SECONDS:
            self._interrupt(child, now)

    def _check_limits(self, me: Task, child: Child, since: float, now: float) -> None:
        budget = self._kernel.run.budget
        cpu, turn = child.core_seconds(), round(since * 1000)
        if (
            now - self._looked_at > _LATE_SECONDS
        ):  # a late check has not seen the rank wait: the whole machine may have paused
            self._seen_at += now - self._looked_at
        self._looked_at = now
        if turn != self._seen[0] or self._computes(cpu) or child.has_children():
            # From the first look on, not from when its turn began; for processes of its own it may wait.
            self._seen, self._seen_at = (turn, cpu), now
        if now - self._seen_at > budget.stuck_seconds:
            self._stop(Ending.STUCK, me, child, now)
        elif now - self._start > budget.seconds:
            self._stop(Ending.SECONDS, me, child, now)

    def _computes(self, cpu: float) -> bool:
        return cpu - self._seen[1] > _BUSY_SHARE * self._kernel.run.budget.stuck_seconds

    def _stop(self, ending: Ending, me: Task, child: Child, now: float) -> None:
        self._kernel.stop_at_limit(ending, me, child.stack())
        self._interrupt(child, now)

    def _interrupt(self, child: Child, now: float) -> None:
        child.interrupt()
        self._interrupted_at[child.rank] = now
