"""Starts an execution and ends it early, on the thread that called the simulator."""

from __future__ import annotations

from contextlib import nullcontext

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.states import Ending
from ddpsim.simulator.runtime.baton import stack_of
from ddpsim.simulator.runtime.one_core import threads_started_here_share_a_core
from ddpsim.simulator.runtime.rank_thread import RankThread
from ddpsim.simulator.runtime.thread_host import ThreadHost


class Starter:
    """Starts and ends one execution from outside, on a thread that belongs to no rank."""

    def __init__(self, host: ThreadHost, kernel: Kernel, *, share_core: bool) -> None:
        self.host = host
        self._kernel = kernel
        self._share_core = share_core

    def start(self) -> None:
        """Start every rank's thread and pass the baton to the first chosen rank."""
        with threads_started_here_share_a_core() if self._share_core else nullcontext():
            for rank in self.host.ranks:
                try:
                    rank.main.start()
                except RuntimeError as error:
                    raise UsageError(
                        f"cannot start a thread for rank {rank.rank} of {len(self.host.ranks)} ({error}): "
                        "use fewer ranks, or raise the limit of processes (`ulimit -u`)"
                    ) from error
        self.host.baton.pass_on(None, self._kernel.start())

    def end_from_outside(self) -> None:
        """End the execution from the thread that started it, even if no rank has got the baton yet."""
        baton = self.host.baton
        self._kernel.stop(Ending.INTERRUPTED)
        if baton.running is None and not baton.has_ended:
            for rank in self.host.ranks:
                if not rank.main.ident:
                    self._kernel.never_started(rank.main.task)
            baton.pass_on(None, self._kernel.next_unfinished())

    def abandon(self, stuck: RankThread) -> None:
        """Take the baton from a rank that does not end, and unwind the other ranks."""
        self._kernel.abandon(stuck.task)
        self._kernel.stop(Ending.STUCK)
        self.host.baton.pass_on(stuck, self._kernel.next_unfinished())

    def stop_at_limit(self, ending: Ending, rank: RankThread | None) -> None:
        """Stop the execution because a limit of wall time has passed."""
        stack = None if rank is None else stack_of(rank)
        self._kernel.stop_at_limit(ending, None if rank is None else rank.task, stack)
