"""The baton: which thread of a rank runs, and how the baton goes from one to the next."""

from __future__ import annotations

import sys
from _thread import allocate_lock as _allocate_lock
from collections.abc import Callable, Sequence

from ddpsim.simulator.kernel.requests import StackTold
from ddpsim.simulator.runtime.call_sites import stack_text, waits_for_lock
from ddpsim.simulator.runtime.kernel_port import KernelPort
from ddpsim.simulator.runtime.rank_thread import Rank, RankThread


class Baton:
    """The baton of one execution. Each thread sleeps before a lock of its own, `RankThread.baton`, until it has it."""

    def __init__(
        self,
        kernel: KernelPort,
        ranks: Sequence[Rank],
        switch: Callable[[int | None, int | None], None],
    ) -> None:
        self.running: RankThread | None = None
        """Who has it."""
        self.started: dict[int, RankThread] = {rank.rank: rank.main for rank in ranks}
        """The threads that have not ended, and all that run a rank's program, by number."""
        self.has_ended = False
        self.over = _allocate_lock()
        """Whoever started the execution waits for it. Released when that has ended, that is, the last rank is finished,
        and when something else is to be done there (prompt_server.py)."""
        self.over.acquire()
        self._kernel = kernel
        self._switch = switch

    def pass_on(self, giver: RankThread | None, number: int | None) -> None:
        """Hand it from one thread to another; None stands for the thread that started the execution.

        With nobody to hand it to, the execution has ended.
        """
        successor = None if number is None else self.started[number]
        try:
            self._switch(None if giver is None else giver.rank, None if successor is None else successor.rank)
            self._kernel.give_baton(number)
        except Exception as error:  # a bug of ours, but the baton must go on, or everybody sleeps for ever
            self.break_off_by_bug(error)
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
