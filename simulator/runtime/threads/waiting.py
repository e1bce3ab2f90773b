"""Finds out what a blocked thread waits for, such as "a semaphore".

Python builds these from locks, so only the stack shows which one a thread waits for.
"""

import concurrent.futures.thread as executors
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import lru_cache
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any

from ddpsim.simulator.calls import Site
from ddpsim.simulator.runtime.call_sites import frames_outwards, is_project_code, is_user_code, user_site_of

_IMPORTS = "<frozen importlib._bootstrap>"


@lru_cache(maxsize=1)
def _awaited_things_by_function_code() -> dict[CodeType, str]:
    """Return, by code of functions of Python's library, what their caller waits for, such as "a semaphore"."""
    functions: dict[Any, str] = {
        threading.Condition.wait: "a condition",
        threading.Event.wait: "an event",
        threading.Semaphore.acquire: "a semaphore",
        threading.Barrier.wait: "a barrier of threads",
        queue.Queue.get: "an item of a queue",
        queue.Queue.put: "room in a queue",
        queue.Queue.join: "the tasks of a queue",
        Future.result: "a future",
        Future.exception: "a future",
        executors._worker: "work",
    }
    return {function.__code__: meaning for function, meaning in functions.items()}


def describe_wait(frame: FrameType | None, what: str = "a lock") -> tuple[str, Site]:
    """Return what the program waits for and the line of the program that waits."""
    for each in _library_frames(frame):
        what = _awaited_things_by_function_code().get(each.f_code, what)
    return what, user_site_of(frame)


def _library_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield stack frames outwards, up to the innermost frame of the user's program."""
    return takewhile(lambda each: not is_user_code(each.f_code), frames_outwards(frame))


def is_in_destructor(frame: FrameType | None) -> bool:
    """True inside `__del__` or a weak reference's callback, where an exception would be lost."""
    return any(each.f_code.co_name in ("__del__", "weakref_cb") for each in frames_outwards(frame))


def module_that_makes_lock(frame: FrameType | None) -> str:
    """Return the name of the module that makes a lock, directly or through a class of Python's library."""
    while frame is not None and frame.f_globals.get("__name__") in ("threading", "queue", "concurrent.futures._base"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__"))


def class_that_makes_lock(frame: FrameType | None) -> str:
    """Return the class of Python's library, such as "Semaphore", for which a frame makes a lock; "" for none."""
    module = "" if frame is None else frame.f_globals.get("__name__")
    if frame is None or module not in ("threading", "queue", "concurrent.futures.thread"):
        return ""
    made = type(frame.f_locals.get("self"))
    return next((each.__name__ for each in made.__mro__ if each.__module__ == module), "")


def is_importing(frame: FrameType | None) -> bool:
    """True during an import. Objects made then outlive the run, as modules do."""
    return any(each.f_code.co_filename == _IMPORTS for each in frames_outwards(frame))


def is_importing_project_module(frame: FrameType | None) -> bool:
    """True during the import of a module of the user's project, but not of an installed module that it imports."""
    for each in frames_outwards(frame):
        if each.f_code.co_name == "<module>" and is_importing(each):
            return is_project_code(each.f_code)
    return False


def is_importing_library(frame: FrameType | None) -> bool:
    """True during the import of a module that is not the user's."""
    return any(each.f_code.co_filename == _IMPORTS for each in _library_frames(frame))
