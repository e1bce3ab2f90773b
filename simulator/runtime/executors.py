"""Copies of the caller's thread pool executors, one for each rank that uses them, as forked processes would have.

If ranks shared one, the first rank to end would shut it down for all, and its workers, which are not simulated, would
run the ranks' work at any time. The caller's executor itself is not changed.
"""

from __future__ import annotations

import copy
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_PLAIN_QUEUE = queue.SimpleQueue
"""The work queue of an executor made outside of ranks. An executor made by a rank has a simulated queue."""


class Executors:
    """The ranks' copies of executors in one execution."""

    def __init__(self) -> None:
        self._own: dict[tuple[int, int], tuple[ThreadPoolExecutor, Any]] = {}
        """(rank, id of the caller's executor) -> (that executor, kept alive so that the id stays unique; the copy)."""

    def of_rank(self, executor: ThreadPoolExecutor, rank: int) -> ThreadPoolExecutor:
        """Return the executor that a rank uses instead of the caller's."""
        if not isinstance(vars(executor)["_work_queue"], _PLAIN_QUEUE):
            return executor
        if (rank, id(executor)) not in self._own:
            self._own[rank, id(executor)] = executor, _as_new(executor)
        own: ThreadPoolExecutor = self._own[rank, id(executor)][1]
        return own

    def forget(self) -> None:
        """Drop all copies after the run. May be called twice."""
        self._own.clear()


def _as_new(executor: ThreadPoolExecutor) -> ThreadPoolExecutor:
    """Return a copy without workers and work. If the original was shut down, the copy is, too."""
    own: Any = copy.copy(executor)
    vars(own).update(
        _threads=set(),
        _work_queue=queue.SimpleQueue(),
        _idle_semaphore=threading.Semaphore(0),
        _shutdown_lock=threading.Lock(),
    )
    return own  # type: ignore[no-any-return]
