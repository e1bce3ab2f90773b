"""External effects: what a rank reads or changes outside its process, such as files.

A rank that speculates waits for the baton before such an effect. So it sees what earlier ranks wrote, and later ranks
see what it wrote, as if one rank ran at a time. Python reports most effects (`sys.addaudithook`). It does not report
reading the properties of a file, so functions of `os` are wrapped for that.

Effects of native code are not noticed, except torch's writer of files. Memory that ranks map together is not noticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

import torch

from ddpsim.simulator.runtime.replaced import Replaced

_CHANGING = frozenset({
    "fcntl.flock", "fcntl.lockf", "os.chmod", "os.chown", "os.fork", "os.kill", "os.killpg", "os.link", "os.listdir",
    "os.listxattr", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.symlink",
    "os.system", "os.truncate", "os.utime", "shutil.rmtree", "socket.bind", "socket.connect", "sqlite3.connect",
    "subprocess.Popen",
})  # fmt: skip
_LOOKING = ("access", "lstat", "readlink", "stat", "statvfs")
_CODE = (".py", ".pyc", ".so")


def wait_before_external_effects(wait: Callable[[], None]) -> None:
    """Make this process call `wait` before it touches anything outside itself. Cannot be undone: the process is the
    rank's."""

    def heed(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not _is_code(*arguments):
                wait()
        elif event in _CHANGING and not (event == "os.listdir" and _imports(sys._getframe(1))):
            wait()

    sys.addaudithook(heed)
    _watch_functions(_LOOKING, wait)

    def opening(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def open_zipfile_writer(name_or_buffer: Any) -> Any:
            if not hasattr(name_or_buffer, "write"):
                wait()
            return original(name_or_buffer)

        return open_zipfile_writer

    Replaced().replace(torch.serialization, "_open_zipfile_writer", opening)


def _imports(frame: FrameType) -> bool:
    """True if Python itself reads this to find a module."""
    return frame.f_code.co_filename.startswith("<frozen importlib")


def _is_code(path: Any, mode: Any, flags: int) -> bool:
    """True for files that an import reads: no rank writes them, and the cached bytecode does not depend on the rank."""
    if not isinstance(path, (str, bytes)):
        return isinstance(path, int)  # it is open already
    name = os.fsdecode(path)
    return "__pycache__" in name or (name.endswith(_CODE) and not flags & (os.O_WRONLY | os.O_RDWR))


def _watch_functions(names: tuple[str, ...], wait: Callable[[], None]) -> None:
    """Call `wait` before functions of `os`."""
    for name in names:
        original = getattr(os, name)
        watched = _after(wait, original)
        Replaced().put(os, name, watched)
        for supports in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
            if original in supports:
                supports.add(watched)


def _after(wait: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        wait()
        return original(*arguments, **options)

    watched.__module__ = os.__name__  # so that pickle finds it
    return watched
