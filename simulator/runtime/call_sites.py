"""Call sites: which line of the user's program stands behind what a rank does.

A frame is the user's if its file lies neither in torch (or what wraps its functions) or pytest, nor in this project's
packages or its plugin, nor among those of the standard library that threads are made of. Whether it does is worked out
once per file; finding a site costs a walk over a few frames, no traceback.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import linecache
import os
import queue
import re
import sys
import sysconfig
import threading
import traceback
from functools import lru_cache
from types import CodeType, FrameType

from ddpsim.simulator.calls import INSTALLED, NOWHERE, Site

_OWN_PACKAGES = ("torch", "ddpsim.simulator", "ddpsim.ddp", "ddpsim.scenarios.pytest_plugin", "_pytest", "pluggy")
_DEPRECATING = ("typing_extensions", "warnings", "_py_warnings")
"""Where what wraps functions of torch that have another name by now is, in one version of Python or another."""

GENERATED = "<ddpsim generated>"
"""The file of code that stands for lines of another program, and is none of any."""

_GENERATED = (GENERATED, "<frozen", "<eval_with_key", "<attrs generated", "<__array_function__")
"""Code without a file that a library made."""

_OF_INDUCTOR = re.compile(r".*[/\\]([a-z2-7]{2})[/\\]c\1[a-z2-7]{40,}\.py")
"""The files that inductor generates, wherever its cache is: by a hash, of which their folder has two letters."""

_REST = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")

_OF_DATACLASSES = frozenset(dir(object)) | {"__create_fn__"}
"""Names of functions that dataclasses makes by exec, from "<string>" as `python -c` does."""

STARTS = frozenset({"ddpsim.simulator.runtime.rank_body", "ddpsim.simulator.runtime.threads.thread_body"})
"""Modules from which the program of a rank, and the threads that it starts, are run."""

_OF_LOCKS = frozenset({"threading", "queue", "concurrent.futures.thread"})
_PYTHONS_OWN = os.path.join(sysconfig.get_path("stdlib"), "")
_AT_LOCK = re.compile(r"\s*with\b|.*\.(acquire|get)\(")
"""A line of Python that may be blocked at a lock or a queue."""


@lru_cache(maxsize=1)
def _foreign_roots() -> tuple[str, ...]:
    roots = []
    for package in _OWN_PACKAGES:
        top, *below = package.split(".")  # to look for one within another would import the other
        spec = importlib.util.find_spec(top)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            roots.append(os.path.join(os.path.abspath(folder), *below, ""))
    executors = os.path.dirname(os.path.abspath(concurrent.futures.__file__))
    specs = map(importlib.util.find_spec, _DEPRECATING)
    roots += [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return (*roots, threading.__file__, queue.__file__, os.path.join(executors, ""), contextlib.__file__)


def is_users(code: CodeType) -> bool:
    """True for a function of the user's program."""
    path = code.co_filename
    return is_users_file(path) and not (path == "<string>" and code.co_name in _OF_DATACLASSES)


@lru_cache(maxsize=4096)
def is_users_file(path: str) -> bool:
    """By file: code objects of equal text in two files are equal. What has no file (`<stdin>`, exec) is the user's."""
    if path.startswith("<"):
        return not path.startswith(_GENERATED)
    return not os.path.abspath(path).startswith(_foreign_roots()) and not _OF_INDUCTOR.fullmatch(path)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's program, from `frame` outwards."""
    while frame is not None and not is_users(frame.f_code):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=4096)
def site_in(path: str, line: int, function: str) -> Site:
    """A line of a function, also of the rest of one, behind a break of the graph that it was compiled to."""
    rest = _REST.fullmatch(function)
    return Site(path, line, rest[1] if rest else function)


def site_at(frame: FrameType) -> Site:
    """The line that `frame`, of the user's program, is at."""
    return site_in(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def calls_into(path: str, other: str) -> bool:
    """True if a file may be named as what called another: not of the same installed packages, nor Python's own."""
    return path != other and _home(path) not in (_home(other), _PYTHONS_OWN)


@lru_cache(maxsize=4096)
def _home(path: str) -> str:
    """The folder of installed packages that a file is in, that of the standard library, or the file."""
    found = INSTALLED.search(path)
    if found is not None:
        return path[: found.end()]
    return _PYTHONS_OWN if path.startswith(_PYTHONS_OWN) else path


def package_of(path: str) -> str:
    """The installed package that a file is in, such as "torch"; "" for any other file."""
    found = INSTALLED.search(path)
    return "" if found is None else re.split(r"[/\\.]", path[found.end() :])[0]


def is_projects(code: CodeType) -> bool:
    """True for a function of the user's program that lies neither among installed packages nor in Python's library."""
    path = code.co_filename
    return is_users(code) and _home(path) == path


def site_of(frame: FrameType | None) -> Site:
    """The line of the user's program from which `frame` was reached; equal lines give the same object."""
    found = user_frame(frame)
    return NOWHERE if found is None else site_at(found)


def site_here() -> Site:
    """The line of the user's program that the caller was reached from."""
    return site_of(sys._getframe(1))


def site_of_error(error: BaseException | None) -> Site | None:
    """The innermost line of the user's program that an exception passed."""
    site = None
    for frame, line in traceback.walk_tb(error.__traceback__ if error else None):
        if is_users(frame.f_code):
            site = site_in(frame.f_code.co_filename, line, frame.f_code.co_name)
    return site


def traceback_text(error: BaseException) -> str:
    """The exception with the user's frames of its traceback; the exception itself still has them all."""
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [(frame, line) for frame, line in frames if is_users(frame.f_code)]
    stack = traceback.StackSummary.extract(iter(users or frames))
    lines = ["Traceback (the user's frames):\n", *stack.format(), *traceback.format_exception_only(error)]
    return "".join(lines)


def stack_text(frame: FrameType | None) -> str:
    """The stack that ends in `frame`, from the user's first frame on, innermost last, without the simulator's own."""
    if frame is None:
        return "(no Python stack)"
    frames = list(traceback.walk_stack(frame))[::-1]
    start = max(
        (index for index, (each, _) in enumerate(frames) if each.f_globals.get("__name__") in STARTS), default=0
    )
    first = next((start + index for index, (each, _) in enumerate(frames[start:]) if is_users(each.f_code)), start)
    told = [(each, line) for each, line in frames[first:] if not is_simulators_file(each.f_code.co_filename)]
    return "".join(traceback.StackSummary.extract(iter(told)).format())


@lru_cache(maxsize=4096)
def is_simulators_file(path: str) -> bool:
    """True for a file of the simulator itself."""
    return os.path.abspath(path).startswith(os.path.join(os.path.dirname(os.path.dirname(__file__)), ""))


def waits_for_lock(frame: FrameType | None) -> bool:
    """True if what is blocked in `frame` seems to wait for a lock. Python's own are native: the line has to tell."""
    if frame is None:
        return False
    if frame.f_globals.get("__name__") in _OF_LOCKS:
        return True
    return _AT_LOCK.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno)) is not None
