"""External effects: what a rank reads or changes outside its process, such as files.

A rank that computes without the baton (the right to run) waits for it before such an effect. So ranks see each other's
effects as if one rank ran at a time. Python reports most effects (`sys.addaudithook`), but not reading the properties
of a file, so functions of `os` are wrapped. Effects of native code and shared memory are not noticed, except torch's
writer of files.
"""

import linecache
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from os import stat  # bound here: that of a rank is replaced
from stat import S_ISDIR
from types import FrameType
from typing import Any

import torch

from ddpsim.simulator.runtime.leaving import may_catch_errors
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_CHANGING = frozenset({
    "fcntl.flock", "fcntl.lockf", "os.chmod", "os.chown", "os.fork", "os.kill", "os.killpg", "os.link", "os.listdir",
    "os.listxattr", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.symlink",
    "os.system", "os.truncate", "os.utime", "shutil.rmtree", "socket.bind", "socket.connect", "sqlite3.connect",
    "subprocess.Popen",
})  # fmt: skip
_LOOKING = ("access", "lstat", "readlink", "stat", "statvfs")
_OF_PATHS = frozenset({"genericpath", "os", "pathlib", "posixpath", "shutil"})
_BARE_IF = re.compile(r"\s*if\b(?!.*(\b(all|and|any|else|if|or|try|while)\b|main|master|rank)).*", re.DOTALL)
"""Matches lines from an `if` on that has no other condition than a look."""
_CODE = (".py", ".pyc", ".so")


def wait_before_external_effects(wait: Callable[..., None]) -> None:
    """Make this process call `wait` before every external effect, with the function and the file that it looks at, and
    `writes` if it writes the file anew or removes a tree; False if it reads one that it has not looked for before.
    `line` is that of the look, or of the look for the folder that it makes or removes. Cannot be undone."""

    locks: list[str] = []  # once there are any, ranks may write a file one after another
    looked: dict[Any, str] = {}

    def wait_if_external_effect(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not _is_code_file(*arguments):
                is_temporary = sys._getframe(1).f_globals.get("__name__") == "tempfile"
                locks.extend([event] * (bool(arguments[2] & os.O_EXCL) and not is_temporary))
                is_used = not locks and not is_folder(arguments[0])
                wait(event, arguments[0], writes=_writes(arguments[1], arguments[0] in looked) if is_used else None)
        elif event in _CHANGING:
            locks.extend([event] * event.startswith("fcntl."))
            is_import = sys._getframe(1).f_code.co_filename.startswith("<frozen importlib")
            if not (event == "os.listdir" and is_import):
                removes = event == "shutil.rmtree" and not locks
                makes = event == "os.mkdir" and not locks
                look = looked.get(str(arguments[0]), "") if makes or removes else ""
                line = _line_of_look(sys._getframe(1), look) if look else ""
                looks = event in ("os.listdir", "os.scandir", "shutil.rmtree") or line
                wait(*((event, *arguments[:1]) if looks else ()), writes=True if line or removes else None, line=line)

    sys.addaudithook(wait_if_external_effect)
    replaced = ReplacedAttributes()
    for name in _LOOKING:
        replaced.replace_attribute(os, name, partial(_waiting_function, wait, looked))

    def wrap_zipfile_writer(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def open_zipfile_writer(name_or_buffer: Any) -> Any:
            if not hasattr(name_or_buffer, "write"):
                wait("open", name_or_buffer, writes=None if locks else True)
            return original(name_or_buffer)

        return open_zipfile_writer

    replaced.replace_attribute(torch.serialization, "_open_zipfile_writer", wrap_zipfile_writer)


def _writes(mode: str | None, is_looked_for: bool) -> bool | None:
    """Return whether a file that is opened is written anew; None if it is neither, nor read without a look before."""
    if mode is not None and mode.startswith("w"):
        return True
    return None if mode is None or is_looked_for or not mode.startswith("r") else False


def is_folder(path: Any, since: float = 0) -> bool:
    """Return whether a path leads to a folder in which files were made or removed later than at `since`."""
    with suppress(OSError, TypeError, ValueError):
        return S_ISDIR((found := stat(path)).st_mode) and found.st_mtime > since
    return False


def _is_code_file(path: Any, mode: Any, flags: int) -> bool:
    """Return whether an import opens this file: no rank writes such files; cached bytecode is equal for all."""
    if not isinstance(path, (str, bytes)):
        return isinstance(path, int)  # a file that is already open
    name = os.fsdecode(path)
    return "__pycache__" in name or (name.endswith(_CODE) and not flags & (os.O_WRONLY | os.O_RDWR))


def _line_of_look(frame: FrameType, line: str) -> str:
    """Return the line at which the program looked for a folder that it makes or removes now, if every rank does so that
    finds the same; else "", as where the program is ready for another rank's deed (`exist_ok`, `except`)."""
    caller = _caller_of_path_function(frame)
    is_ready = any(map(frame.f_locals.get, ("exist_ok", "ignore_errors", "onerror", "onexc")))
    if _line_of(caller).split(":")[0] != line.split(":")[0] or is_ready:
        return ""
    lines = linecache.getlines(caller.f_code.co_filename)[int(line.split(":")[1]) - 1 : caller.f_lineno]
    return line if _BARE_IF.fullmatch("".join(lines)) and not may_catch_errors(caller) else ""


def _caller_of_path_function(frame: FrameType) -> FrameType:
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _OF_PATHS:
        frame = frame.f_back
    return frame


def _line_of(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _waiting_function(
    wait: Callable[..., None], looked: dict[Any, str], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a replacement for a function of `os`, which calls `wait` first, and adds the file to `looked`."""

    @wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        line = _line_of(_caller_of_path_function(sys._getframe(1)))
        wait(original, *arguments[:1], line=line)
        with suppress(TypeError):  # no path, but a number
            looked.update(dict.fromkeys(map(os.fspath, arguments[:1]), line))
        return original(*arguments, **options)

    watched.__module__ = os.__name__  # so that pickle finds it
    for supports in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        if original in supports:
            supports.add(watched)
    return watched
