"""Replacements of `threading.Lock`, `queue.SimpleQueue` and so on: simulated ones on rank threads, else Python's own.

The last parameter of each method is the original that it replaces.
"""

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from ddpsim.simulator.runtime.threads import waiting
from ddpsim.simulator.runtime.threads.event_loops import OUTSIDE
from ddpsim.simulator.runtime.threads.lock_steps import LockSteps
from ddpsim.simulator.runtime.threads.locks import RankLock, RankRLock


class LockMakers:
    """The replacements of `threading.Lock` and similar functions, for one run."""

    def __init__(self, steps: LockSteps, *, owns_modules: bool) -> None:
        """`owns_modules`: a lock made during the import of one of the program's own modules belongs to the rank."""
        self._steps = steps
        self._outlasts = waiting.is_importing_library if owns_modules else waiting.is_importing
        """A function: True for a frame during an import, where objects that are made may outlive the run."""

    def wrap_condition_lock(self, original: Any) -> Any:
        """Replace the lock at which a condition variable waits by a `RankLock` if the variable's own is simulated."""

        def allocate_lock() -> Any:
            me = self._steps.calling_rank_thread()
            lock = None if me is None else getattr(sys._getframe(1).f_locals.get("self"), "_lock", None)
            if me is None or not isinstance(lock, (RankLock, RankRLock)):
                return original()
            return RankLock(self._steps, me, is_inner=True, is_external=lock.is_external)

        return allocate_lock

    def wrap_maker(self, make: Callable[..., Any], kind: str, original: Any) -> Any:
        """Replace `threading.Lock`, `threading.RLock` or `queue.SimpleQueue`, of which `kind` is the name."""
        steps = self._steps

        def make_for_caller(caller: FrameType, arguments: tuple[Any, ...]) -> Any:
            me = steps.calling_rank_thread()
            if me is None or self._outlasts(caller):
                return original(*arguments)
            if steps.host.is_observed:
                steps.report_use(waiting.class_that_makes_lock(caller) or kind)
            return make(steps, me, *arguments, is_external=waiting.module_that_makes_lock(caller).startswith(OUTSIDE))

        if isinstance(original, type):  # SimpleQueue, and from Python 3.13 on Lock: for annotations and isinstance
            new = {"__new__": lambda cls, *arguments: make_for_caller(sys._getframe(1), arguments)}
            replacement: Any = type(original.__name__, (), new)
        else:
            replacement = wraps(original)(lambda *arguments: make_for_caller(sys._getframe(1), arguments))
        replacement.__module__ = "queue" if kind == "SimpleQueue" else "threading"  # where pickle finds it
        replacement.__qualname__ = kind
        return replacement
