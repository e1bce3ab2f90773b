"""Executors of the caller that ranks have used: the threads that ranks started for them have ended with the run.

An executor does not notice that, counts on them, and runs nothing any more. So it forgets them afterwards.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any


class Executors:
    """The executors that ranks gave work to, and the threads that each had before."""

    def __init__(self) -> None:
        self._used: list[tuple[Any, frozenset[Thread]]] = []

    def note(self, executor: ThreadPoolExecutor) -> None:
        """A rank is about to give it work."""
        if all(each is not executor for each, _ in self._used):
            threads: Any = vars(executor)["_threads"]
            self._used.append((executor, frozenset(threads)))

    def forget_threads(self) -> None:
        """Let each be as if the run had started no threads for it. May be called twice."""
        while self._used:
            executor, before = self._used.pop()
            if before.issuperset(executor._threads):
                continue
            executor._threads.intersection_update(before)
            if not before:  # else these go on to take work from the queue
                executor._work_queue, executor._idle_semaphore = SimpleQueue(), Semaphore(0)
