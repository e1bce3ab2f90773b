"""The baton: which thread of a rank runs, how the baton goes from one to the next, and how the execution ends."""

from __future__ import annotations

import sys
from _thread import allocate_lock as _allocate_lock
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.requests import StackTold
from ddpsim.simulator.kernel.states import Ending
from ddpsim.simulator.runtime.call_sites import stack_text, waits_for_lock
from ddpsim.simulator.runtime.one_core import threads_started_here_share_a_core
from ddpsim.simulator.runtime.rank_thread import Rank, RankThread


class Baton:
    """The baton of one execution. Each thread sleeps before a lock of its own, `RankThread.baton`, until it has it."""

    def __init__(
        self,
        kernel: Kernel,
        ranks: Sequence[Rank],
        switch: Callable[[int | None, int | None], None],
        *,
        share_core: bool,
    ) -> None:
        self.running: RankThread | None = None
        """Who has it."""
        self.started: dict[int, RankThread] = {rank.rank: rank.main for rank in ranks}
        """The threads that have not ended, and all that run a rank's program, by number."""
        self.has_ended = False
        self.over = _allocate_lock()
        """Held until the execution has ended, that is, the last rank is finished."""
        self.over.acquire()
        self._kernel = kernel
        self._ranks = ranks
        self._switch = switch
        self._share_core = share_core

    # --- called by the thread that starts the execution ---------------------------------------------------------------

    def start(self) -> None:
        """Start every rank's thread and hand the baton to the first one chosen."""
        with threads_started_here_share_a_core() if self._share_core else nullcontext():
            for rank in self._ranks:
                try:
                    rank.main.start()
                except RuntimeError as error:
                    raise UsageError(
                        f"the system starts no thread for rank {rank.rank} ({error}), expected one for each of "
                        f"{len(self._ranks)} ranks: take fewer ranks, or raise the limit of processes (`ulimit -u`)"
                    ) from error
        self.pass_on(None, self._kernel.start())

    def end_from_outside(self) -> None:
        """End the execution from the thread that started it, whether or not it got as far as handing over the baton."""
        self._kernel.stop(Ending.INTERRUPTED)
        if self.running is None and not self.has_ended:
            for rank in self._ranks:
                if not rank.main.ident:
                    self._kernel.never_started(rank.main.task)
            self.pass_on(None, self._kernel.next_unfinished())

    def abandon(self, stuck: RankThread) -> None:
        """Take the baton from a rank that does not come back, and unwind the others without it."""
        self._kernel.abandon(stuck.task)
        self._kernel.stop(Ending.STUCK)
        self.pass_on(stuck, self._kernel.next_unfinished())

    def stop_at_limit(self, ending: Ending, rank: RankThread | None) -> None:
        """Stop because a limit of wall time has passed."""
        stack = None if rank is None else stack_of(rank)
        self._kernel.stop_at_limit(ending, None if rank is None else rank.task, stack)

    # --- called by whoever has it -------------------------------------------------------------------------------------

    def pass_on(self, giver: RankThread | None, number: int | None) -> None:
        """Hand it from one thread to another; None stands for the thread that started the execution.

        With nobody to hand it to, the execution has ended.
        """
        successor = None if number is None else self.started[number]
        try:
            self._switch(None if giver is None else giver.rank, None if successor is None else successor.rank)
        except Exception as error:  # a bug of ours, but the baton must go on, or everybody sleeps for ever
            self.break_off_by_bug(error)
        self._kernel.give_baton(number)
        self.running = successor
        if successor is None:
            self.has_ended = True
            self.over.release()
        else:
            successor.baton.release()

    def break_off_by_bug(self, error: Exception) -> None:
        """End the execution with an error that nobody but us can have made."""
        self._kernel.run.life.break_off_by_bug(error, None if self.running is None else self.running.rank)


def stack_of(rank: RankThread) -> StackTold:
    """Where what a thread runs stands."""
    frame = sys._current_frames().get(rank.ident)
    return StackTold(stack_text(frame), waits_for_lock(frame))
