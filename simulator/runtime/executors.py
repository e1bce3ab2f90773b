"""Executors of the caller that ranks use: during a run each is as it was when it was new.

A worker outside would do the work of ranks at moments of its own, and the threads that ranks start for an executor end
with the run, which it does not notice; the last of them even shuts it down, as at the end of a process. So it gets its
own threads and queue back afterwards.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_PLAIN_QUEUE = queue.SimpleQueue
"""What an executor of the caller has; one that a rank made has a queue of the simulator's."""

_OF_WORKERS = ("_threads", "_work_queue", "_idle_semaphore", "_shutdown")


class Executors:
    """The executors of the caller that ranks gave work to, and what each had before."""

    def __init__(self) -> None:
        self._used: list[tuple[Any, dict[str, Any]]] = []

    def note(self, executor: ThreadPoolExecutor) -> None:
        """A rank is about to give it work."""
        state = vars(executor)
        if not isinstance(state["_work_queue"], _PLAIN_QUEUE) or any(each is executor for each, _ in self._used):
            return
        self._used.append((executor, {name: state[name] for name in _OF_WORKERS}))
        if not state["_shutdown"]:
            state |= {
                "_threads": set(),
                "_work_queue": queue.SimpleQueue(),
                "_idle_semaphore": threading.Semaphore(0),
            }

    def restore(self) -> None:
        """Let each be as it was before the run. May be called twice."""
        while self._used:
            executor, before = self._used.pop()
            vars(executor).update(before)
