"""Watches the running rank: limits of wall time, and ranks that are stuck."""

from collections.abc import Sequence

from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.states import RunEnding, RunPhase
from ddpsim.simulator.kernel.tasks import Task
from ddpsim.simulator.rank_processes.children import ChildProcess
from ddpsim.simulator.runtime.stopwatch import Stopwatch

_WATCH_SECONDS = 0.04
"""The seconds from one check to the next, fewer than the coordinator waits for a message."""

_BUSY_SHARE = 0.1
"""A rank that uses more than this share of a core computes; one that uses less waits in a polling loop."""

_LATE_SECONDS = 1.0
"""A check that comes more seconds than this after the last one is late: checks come several times a second."""

_GRACE_SECONDS = 1.0
"""The seconds that a rank has to notice the end of the run before it is interrupted, and again before it is killed."""


class RankWatchdog:
    """Watches the ranks of one execution, one at a time."""

    def __init__(self, kernel: Kernel, processes: Sequence[int] = ()) -> None:
        self._kernel = kernel
        self._processes = processes
        self.clock = Stopwatch()
        self._start = self.clock.elapsed_seconds()
        self._seen: tuple[int, float] = (-1, 0.0)
        """When the current rank began to run, and the rank's CPU time when it was last seen computing."""
        self._seen_at = self._looked_at = self._start
        self._leaving: tuple[int, float] = (-1, 0.0)
        """The rank that has to leave its program now, and the time at which this was first seen."""
        self._interrupted_at: dict[int, float] = {}
        """The time at which each rank was interrupted; a rank is interrupted once, then killed."""

    def is_due(self) -> bool:
        """Return whether the last check was some time ago."""
        return self.clock.elapsed_seconds() - self._looked_at >= _WATCH_SECONDS

    def check_rank(self, me: Task, child: ChildProcess, since: float) -> None:
        """Check the time limits for the running rank, of which a message has been awaited since `since`."""
        now = self.clock.elapsed_seconds()
        if self._kernel.run.life.phase is RunPhase.RUNNING:
            return self._check_limits(me, child, since, now)
        self._looked_at = now
        if self._leaving[0] != child.rank:  # one that goes on making calls while it leaves has no more time
            self._leaving = child.rank, since
        since = self._leaving[1]
        if child.rank in self._interrupted_at:
            if now - self._interrupted_at[child.rank] > _GRACE_SECONDS:
                child.kill_process()
        elif now - since > _GRACE_SECONDS:
            self._interrupt_rank(child, now)

    def _check_limits(self, me: Task, child: ChildProcess, since: float, now: float) -> None:
        self._kernel.run.note_progress(now - self._start, self._processes)
        budget = self._kernel.run.budget
        cpu, turn = child.core_seconds(), round(since * 1000)
        if now - self._looked_at > _LATE_SECONDS:  # the whole machine may have paused
            self._seen_at += now - self._looked_at
        self._looked_at = now
        computes = cpu - self._seen[1] > _BUSY_SHARE * budget.stuck_seconds
        if turn != self._seen[0] or computes or child.has_children():  # it may wait for its child processes
            self._seen, self._seen_at = (turn, cpu), now
        if now - self._seen_at > budget.stuck_seconds:
            self._stop_at_limit(RunEnding.STUCK, me, child, now)
        elif now - self._start > budget.seconds:
            self._stop_at_limit(RunEnding.SECONDS, me, child, now)

    def _stop_at_limit(self, ending: RunEnding, me: Task, child: ChildProcess, now: float) -> None:
        self._kernel.stop_at_limit(ending, me, child.read_stack())
        self._interrupt_rank(child, now)

    def _interrupt_rank(self, child: ChildProcess, now: float) -> None:
        child.interrupt_program()
        self._interrupted_at[child.rank] = now
