"""External effects: what a rank reads or changes outside its process, such as files.

A rank that computes without the baton (the right to run) waits for it before such an effect. So ranks see each other's
effects as if one rank ran at a time. Python reports most effects (`sys.addaudithook`), but not reading the properties
of a file, so functions of `os` are wrapped. Effects of native code and shared memory are not noticed, except torch's
writer of files.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from os import stat  # bound here: that of a rank is replaced
from stat import S_ISDIR
from typing import Any

import torch

from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_CHANGING = frozenset({
    "fcntl.flock", "fcntl.lockf", "os.chmod", "os.chown", "os.fork", "os.kill", "os.killpg", "os.link", "os.listdir",
    "os.listxattr", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.symlink",
    "os.system", "os.truncate", "os.utime", "shutil.rmtree", "socket.bind", "socket.connect", "sqlite3.connect",
    "subprocess.Popen",
})  # fmt: skip
_LOOKING = ("access", "lstat", "readlink", "stat", "statvfs")
_CODE = (".py", ".pyc", ".so")


def wait_before_external_effects(wait: Callable[..., None]) -> None:
    """Make this process call `wait` before every external effect, with the function and the file that it looks at, and
    `writes` if it writes the file anew or removes a tree; False if it reads one that it has not looked for before.
    Cannot be undone."""

    locks: list[str] = []  # once there are any, ranks may write a file one after another
    looked: set[Any] = set()

    def wait_if_external_effect(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not _is_code_file(*arguments):
                is_temporary = sys._getframe(1).f_globals.get("__name__") == "tempfile"
                locks.extend([event] * (bool(arguments[2] & os.O_EXCL) and not is_temporary))
                is_used = not locks and not _is_folder(arguments[0])
                wait(event, arguments[0], writes=_writes(arguments[1], arguments[0] in looked) if is_used else None)
        elif event in _CHANGING:
            locks.extend([event] * event.startswith("fcntl."))
            is_import = sys._getframe(1).f_code.co_filename.startswith("<frozen importlib")
            if not (event == "os.listdir" and is_import):
                looks = event in ("os.listdir", "os.scandir", "shutil.rmtree")
                wait(
                    *((event, *arguments[:1]) if looks else ()),
                    writes=True if event == "shutil.rmtree" and not locks else None,
                )

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


def _is_folder(path: Any) -> bool:
    with suppress(OSError, TypeError, ValueError):
        return S_ISDIR(stat(path).st_mode)
    return False


def _is_code_file(path: Any, mode: Any, flags: int) -> bool:
    """Return whether an import opens this file: no rank writes such files; cached bytecode is equal for all."""
    if not isinstance(path, (str, bytes)):
        return isinstance(path, int)  # a file that is already open
    name = os.fsdecode(path)
    return "__pycache__" in name or (name.endswith(_CODE) and not flags & (os.O_WRONLY | os.O_RDWR))


def _waiting_function(wait: Callable[..., None], looked: set[Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for a function of `os`, which calls `wait` first, and adds the file to `looked`."""

    @wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        wait(original, *arguments[:1])
        with suppress(TypeError):  # not hashable
            looked.update(arguments[:1])
        return original(*arguments, **options)

    watched.__module__ = os.__name__  # so that pickle finds it
    for supports in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        if original in supports:
            supports.add(watched)
    return watched
