"""Runs jobs on real processes, several at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import TracebackType

import torch.distributed as dist

from ddpsim.scenarios.agreement.outcome import RankOutcome
from ddpsim.scenarios.agreement.pool.job import Job
from ddpsim.scenarios.agreement.pool.running import Running
from ddpsim.scenarios.agreement.pool.server_link import PoolError, ServerLink
from ddpsim.simulator.errors import UsageError

TEAMS = 12
"""Jobs that hang only wait, so more of them pay than there are cores; see docs/agreement.md."""
TIMEOUT_SECONDS = 30.0


class GlooPool:
    """Processes for the ranks of many jobs; a context manager, which leaves nothing behind.

    `timeout_seconds` is gloo's own time-out, for what never holds still.
    """

    def __init__(self, *, teams: int = TEAMS, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        if teams < 1:
            raise UsageError(f"teams is {teams}, expected 1 or more: say how many jobs may run at a time")
        if not timeout_seconds > 0:
            raise UsageError(f"timeout_seconds is {timeout_seconds:g}, expected more than 0: give gloo time to wait")
        self._teams = teams
        self._timeout_seconds = timeout_seconds
        self._server: ServerLink | None = None

    def __enter__(self) -> GlooPool:
        _check_gloo()
        self._server = ServerLink()
        try:
            self._server.wait_until_ready()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, tuple[RankOutcome, ...]]]:
        """Run the jobs; yields each with what became of its ranks, in the order of the jobs.

        Jobs are taken as there is room for them. Raises PoolError if ranks cannot be started: the pool is of no use
        then.
        """
        assert self._server is not None, "a pool is to be entered first"
        with Running(self._server, self._timeout_seconds) as running:
            coming = iter(jobs)
            running.fill(coming, self._teams)
            while running:
                running.wait()
                yield from running.over()
                running.fill(coming, self._teams)


def _check_gloo() -> None:
    if not (dist.is_available() and dist.is_gloo_available()):
        raise PoolError("found no gloo in this torch, expected it: install a build of torch that has gloo")
    if sys.platform != "linux":
        raise PoolError(f"the platform is {sys.platform}, expected linux: run it there, where one can see who sleeps")
