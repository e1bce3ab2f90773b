"""Executors of the caller that ranks use: each rank has one of its own, as a process that was forked would have.

Shared, the first rank to end would tell the workers that it has started to end, and they would shut the executor down
for all; and a worker outside would do the work of ranks at moments of its own. The caller's executor is not touched.
"""

from __future__ import annotations

import copy
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_PLAIN_QUEUE = queue.SimpleQueue
"""What an executor of the caller has; one that a rank made has a queue of the simulator's."""


class Executors:
    """Those of one execution."""

    def __init__(self) -> None:
        self._own: dict[tuple[int, int], tuple[ThreadPoolExecutor, Any]] = {}
        """By rank and the id of the caller's: that, so that the id stays its own, and the rank's."""

    def of_rank(self, executor: ThreadPoolExecutor, rank: int) -> ThreadPoolExecutor:
        """The one that the running rank uses in the place of an executor."""
        if not isinstance(vars(executor)["_work_queue"], _PLAIN_QUEUE):
            return executor
        if (rank, id(executor)) not in self._own:
            self._own[rank, id(executor)] = executor, _as_new(executor)
        own: ThreadPoolExecutor = self._own[rank, id(executor)][1]
        return own

    def forget(self) -> None:
        """The run is over. May be called twice."""
        self._own.clear()


def _as_new(executor: ThreadPoolExecutor) -> ThreadPoolExecutor:
    """A copy without workers and work; one that was shut down is so, too."""
    own: Any = copy.copy(executor)
    vars(own).update(
        _threads=set(),
        _work_queue=queue.SimpleQueue(),
        _idle_semaphore=threading.Semaphore(0),
        _shutdown_lock=threading.Lock(),
    )
    return own  # type: ignore[no-any-return]
