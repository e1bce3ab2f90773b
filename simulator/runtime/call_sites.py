"""Call sites: the line of the user's program that caused an operation of a rank.

A frame is the user's unless its file belongs to torch (or to wrappers of its functions), pytest, this project or its
plugin, or Python's modules for threads and event loops. This is decided once per file. Finding a site walks over a few
frames and makes no traceback.
"""

import concurrent.futures
import contextlib
import glob
import importlib.util
import inspect
import linecache
import os
import queue
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import lru_cache, partial
from os.path import exists  # bound before ranks run: a look of ours is none of the program's
from types import CodeType, FrameType
from typing import TypeVar

from ddpsim.simulator.calls import INSTALLED, NOWHERE, Site

_Each = TypeVar("_Each")

_OWN_PACKAGES = (
    "torch",
    "ddpsim.simulator",
    "ddpsim.ddp",
    "ddpsim.scenarios.pytest_plugin",
    "ddpsim.scenarios.test_suites",
    "_pytest",
    "pluggy",
)
_DEPRECATION_MODULES = ("typing_extensions", "warnings", "_py_warnings")
"""Modules, by Python version, with the decorator that wraps deprecated functions of torch."""

GENERATED = "<ddpsim generated>"
"""The file name of generated code whose lines represent lines of the user's program."""

_GENERATED = (GENERATED, "<frozen", "<eval_with_key", "<attrs ", "<__array_function__", "<@beartype", "<decorator-gen")
"""Prefixes of the file names that libraries give to generated code; files of these names do not exist."""

_OF_INDUCTOR = re.compile(r".*[/\\]([a-z2-7]{2})[/\\]c\1[a-z2-7]{40,}\.py")
"""Matches the names of files that torch's inductor generates: a hash, in a folder named by two of its letters."""

_REST = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")

_OF_DATACLASSES = frozenset(dir(object)) | {"__create_fn__"}
"""Names of the functions that `dataclasses` makes by exec. Their file name is "<string>", as under `python -c`."""

STARTS = frozenset({"ddpsim.simulator.runtime.rank_body", "ddpsim.simulator.runtime.threads.thread_body"})
"""Modules of ddpsim that call a rank's program and the targets of its threads; the user's frames begin there."""

_OF_LOCKS = frozenset({"threading", "queue", "concurrent.futures.thread"})
_PYTHONS_OWN = os.path.join(sysconfig.get_path("stdlib"), "")
_LOCK_LINE_PATTERN = re.compile(r"\s*with\b|.*\.(acquire|get)\(")
"""Matches a source line of Python's library at which a thread may be blocked, at a lock or a queue."""


@lru_cache(maxsize=1)
def _foreign_roots() -> tuple[str, ...]:
    roots = []
    for package in _OWN_PACKAGES:
        top, *below = package.split(".")  # `find_spec` of a subpackage would import its parent
        spec = importlib.util.find_spec(top)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            roots.append(os.path.join(os.path.abspath(folder), *below, ""))
    specs = map(importlib.util.find_spec, _DEPRECATION_MODULES)
    roots += [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    roots += [os.path.join(os.path.dirname(concurrent.futures.__file__), ""), os.path.join(_PYTHONS_OWN, "asyncio", "")]
    return (*roots, threading.__file__, queue.__file__, contextlib.__file__)


def is_user_code(code: CodeType) -> bool:
    """True for a function of the user's program."""
    path = code.co_filename
    return is_user_file(path) and not (path == "<string>" and code.co_name in _OF_DATACLASSES)


@lru_cache(maxsize=4096)
def is_user_file(path: str) -> bool:
    """True for a file of the user's program. Code without a file (`<stdin>`, exec) is the user's.

    The cache is by file because code objects of equal text in two files are equal.
    """
    if path.startswith("<"):
        return not path.startswith(_GENERATED)
    return not os.path.abspath(path).startswith(_foreign_roots()) and not _OF_INDUCTOR.fullmatch(path)


def frames_outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a stack frame, then its caller, and so on outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's program, from `frame` outwards to where ddpsim called it."""
    while frame is not None and not is_user_code(frame.f_code):
        frame = None if frame.f_globals.get("__name__") in STARTS else frame.f_back
    return frame


@lru_cache(maxsize=4096)
def site_of_line(path: str, line: int, function: str) -> Site:
    """Return a frame's current line as text. After a graph break of torch.compile, name the original function."""
    rest = _REST.fullmatch(function)
    return Site(path, line, rest[1] if rest else function, owner_of_file(path) is not CodeOwner.PROGRAM)


def site_of_user_frame(frame: FrameType) -> Site:
    """Return the current line of `frame`, which belongs to the user's program."""
    return site_of_line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


class CodeOwner(IntEnum):
    """Whose a file is, of those for which `is_user_file` is True; nearest to the user first."""

    PROGRAM = 0
    """The program: its file, and what lies beside it or below; every file but installed ones, if it has no file."""
    PROJECT = 1
    """Another file of the program's checkout, or of none."""
    FRAMEWORK = 2
    """A file of an installed package, of a git submodule, or of another checkout."""
    PYTHON = 3


_PROGRAM = {"folder": "", "checkout": ""}
"""The folder of the program that runs in this process ("" if it has none), and the checkout that has the folder."""


def begin_program(file: str, levels: int) -> None:
    """Note the file of the program that begins in this process, and how many folders upwards its own folder is."""
    folder = os.path.abspath(file)
    for _ in range(levels):
        folder = os.path.dirname(folder)
    _note_program(folder, _checkout_of(folder))


def begin_function(function: object) -> None:
    """Note the function that begins in this process. Its program is its checkout: tests lie beside what they test."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    file = os.path.abspath(code.co_filename) if isinstance(code, CodeType) and is_user_code(code) else ""
    if not os.path.isfile(file):
        _note_program("", "")
        return
    folder = os.path.dirname(file)
    checkout = _checkout_of(folder)
    _note_program(folder if INSTALLED.search(file) else checkout or folder, checkout)


def _note_program(folder: str, checkout: str) -> None:
    noted = {"folder": folder and os.path.join(folder, ""), "checkout": checkout}
    if noted != _PROGRAM:
        _PROGRAM.update(noted)
        for cached in (owner_of_file, site_of_line):
            cached.cache_clear()


@lru_cache(maxsize=4096)
def owner_of_file(path: str) -> CodeOwner:
    """Return whose a file is. This alone decides what a finding shows as the user's, and what is followed as such."""
    if path.startswith("<"):
        return CodeOwner.PROGRAM
    path, folder = os.path.abspath(path), _PROGRAM["folder"]
    is_below = bool(folder) and path.startswith(folder)
    if INSTALLED.search(path, len(folder) - 1 if is_below else 0):
        return CodeOwner.FRAMEWORK
    if path.startswith(_PYTHONS_OWN) and not is_below:
        return CodeOwner.PYTHON
    if folder and _checkout_of(os.path.dirname(path)) not in ("", _PROGRAM["checkout"]):
        return CodeOwner.FRAMEWORK
    return CodeOwner.PROGRAM if is_below or not folder else CodeOwner.PROJECT


@lru_cache(maxsize=4096)
def _checkout_of(folder: str) -> str:
    """Return the nearest folder upwards that is a git checkout, or that `pip install --target` filled; "" if none."""
    if exists(os.path.join(folder, ".git")):
        return folder
    if folder in sys.path and any(glob.iglob(os.path.join(glob.escape(folder), "*.dist-info"))):
        return folder
    parent = os.path.dirname(folder)
    return "" if parent == folder else _checkout_of(parent)


def caller_to_show(callers: Iterable[tuple[str, _Each]], path: str) -> _Each | None:
    """Return, of the callers of a line in file `path`, each with its file and the innermost first, the one to show.

    It is the innermost of the program in another file. If there is none, and the line itself is not the program's, it
    is the innermost of the project, or else the outermost of a framework.
    """
    shown = None
    nearest = CodeOwner.PROJECT if owner_of_file(path) is CodeOwner.PROGRAM else CodeOwner.FRAMEWORK
    for file, each in callers:
        owner = owner_of_file(file)
        if file != path and (owner < nearest or owner is nearest is CodeOwner.FRAMEWORK):
            shown, nearest = each, owner
        if nearest is CodeOwner.PROGRAM:
            break
    return shown


def installed_package_of(path: str) -> str:
    """Return the installed package to which a file belongs, such as "torch"; "" for any other file."""
    found = INSTALLED.search(path)
    return "" if found is None else re.split(r"[/\\.]", path[found.end() :])[0]


def is_project_code(code: CodeType) -> bool:
    """True for a function of the user's own project: not of a framework, nor in Python's library."""
    return is_user_code(code) and owner_of_file(code.co_filename) <= CodeOwner.PROJECT


def user_site_of(frame: FrameType | None) -> Site:
    """Return the innermost line of the user's program on the stack of `frame`. Equal lines are the same object."""
    found = user_frame(frame)
    return NOWHERE if found is None else site_of_user_frame(found)


def current_user_site() -> Site:
    """Return the innermost line of the user's program on the current stack."""
    return user_site_of(sys._getframe(1))


def site_of_error(error: BaseException | None) -> Site | None:
    """Return the user's innermost line in an exception's traceback; one of Python's library if there is no other."""
    site = None
    for frame, line in traceback.walk_tb(error.__traceback__ if error else None):
        if is_user_code(frame.f_code) and not (site and owner_of_file(frame.f_code.co_filename) is CodeOwner.PYTHON):
            site = site_of_line(frame.f_code.co_filename, line, frame.f_code.co_name)
    return site


def format_user_traceback(error: BaseException) -> str:
    """Format an exception with only the user's frames. The exception's own traceback is not changed."""
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [(frame, line) for frame, line in frames if is_user_code(frame.f_code)]
    stack = traceback.StackSummary.extract(iter(users or frames))
    lines = ["Traceback (the user's frames):\n", *stack.format(), *traceback.format_exception_only(error)]
    return "".join(lines)


def format_user_stack(frame: FrameType | None) -> str:
    """Format the stack that ends in `frame`, from the user's first frame on, without the simulator's frames."""
    if frame is None:
        return "(no Python stack)"
    frames = list(traceback.walk_stack(frame))[::-1]
    start = max(
        (index for index, (each, _) in enumerate(frames) if each.f_globals.get("__name__") in STARTS), default=0
    )
    first = next((start + index for index, (each, _) in enumerate(frames[start:]) if is_user_code(each.f_code)), start)
    shown = [(each, line) for each, line in frames[first:] if not is_simulator_file(each.f_code.co_filename)]
    return "".join(traceback.StackSummary.extract(iter(shown)).format())


@lru_cache(maxsize=4096)
def is_simulator_file(path: str) -> bool:
    """True for a file of the simulator itself."""
    return os.path.abspath(path).startswith(os.path.join(os.path.dirname(os.path.dirname(__file__)), ""))


def waits_for_lock(frame: FrameType | None) -> bool:
    """True if code blocked in `frame` seems to wait for a lock. Native locks have no frame, so the line is matched."""
    if frame is None:
        return False
    if frame.f_globals.get("__name__") in _OF_LOCKS:
        return True
    return _LOCK_LINE_PATTERN.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno)) is not None
