"""Files that are written whole or not at all: who is killed, or finds the disk full, leaves what was there before."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


def write_whole(path: Path, data: bytes) -> None:
    """Let a file have these bytes, and be on the disk with them, or be as it was. Raises OSError.

    They are written beside it first, and take its name then. So a link of that name is replaced and not followed, and
    its target stays; only what is no file, as a terminal or a pipe, is written to as it is. A kill at the wrong moment
    may leave a hidden `.ddpsim-*.part` in the folder, which nobody reads.
    """
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        path.write_bytes(data)
        return
    part = path.parent / f".ddpsim-{os.getpid()}-{os.urandom(4).hex()}.part"
    descriptor = os.open(part, _NEW, 0o666)  # less what the user's umask takes
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.chmod(part, stat.S_IMODE(mode))
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    _settle(path.parent)


def _mode(path: Path) -> int | None:
    """Of the file, or of what a link leads to; None if there is nothing."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:  # a link that leads nowhere, too
        return None


def _settle(folder: Path) -> None:
    """Let the name survive a power failure, too; some file systems have no way to say so."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
