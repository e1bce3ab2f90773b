"""The baton: the right to run. Exactly one thread of the ranks has it, and passes it on to the next."""

import sys
from _thread import allocate_lock as _allocate_lock
from collections.abc import Callable, Sequence
from threading import get_native_id

from ddpsim.simulator.kernel.requests import StackReport
from ddpsim.simulator.runtime.call_sites import format_user_stack, waits_for_lock
from ddpsim.simulator.runtime.kernel_port import KernelInterface
from ddpsim.simulator.runtime.rank_thread import RankThread, ThreadedRank
from ddpsim.simulator.runtime.stopwatch import has_child_processes


class Baton:
    """The baton: the right to run. A thread without it sleeps at a lock of its own, `RankThread.baton`."""

    def __init__(
        self, kernel: KernelInterface, ranks: Sequence[ThreadedRank], switch: Callable[[int | None, int | None], None]
    ) -> None:
        self.running: RankThread | None = None
        self.started: dict[int, RankThread] = {rank.rank: rank.main for rank in ranks}
        """By number: the main threads of all ranks, and their other threads that have not ended."""
        self.has_ended = False
        self.over = _allocate_lock()
        """A lock at which the thread that started the run sleeps. It is released when the last rank has ended, and when
        a debugger needs a line of input (prompt_server.py)."""
        self.over.acquire()
        self._kernel = kernel
        self._switch = switch

    def pass_to_thread(self, giver: RankThread | None, number: int | None) -> None:
        """Let another thread run. `giver` is None for the thread that started the run, `number` None at its end."""
        successor = None if number is None else self.started[number]
        try:
            self._switch(None if giver is None else giver.rank, None if successor is None else successor.rank)
            self._kernel.give_baton(number)
        except Exception as error:  # a bug of ddpsim; but the baton must move, or all threads sleep for ever
            self.abort_run_by_bug(error)
        self.running = successor
        if successor is None:
            self.has_ended = True
            self.over.release()
        else:
            successor.baton.release()

    def abort_run_by_bug(self, error: Exception) -> None:
        """End the run with an error that is a bug of ddpsim."""
        self._kernel.run.life.abort_with_internal_error(error, None if self.running is None else self.running.rank)


def stack_of_thread(rank: RankThread) -> StackReport:
    """Return the current stack of a thread, and whether it seems to wait for a lock."""
    frame = sys._current_frames().get(rank.ident)
    return StackReport(format_user_stack(frame), waits_for_lock(frame), has_child_processes("self", get_native_id()))
