"""Writes a file completely or not at all: if the process is killed or the disk is full, the old content remains."""

import os
import stat
from contextlib import suppress
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of a file with these bytes, or leave the file unchanged. Raises OSError.

    The bytes are written to a new file in the same folder, which is then renamed. A link is replaced, not followed. A
    terminal or a pipe is written to directly. A kill may leave a hidden file `.ddpsim-*.part` in the folder.
    """
    mode = _file_mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        path.write_bytes(data)
        return
    part = path.parent / f".ddpsim-{os.getpid()}-{os.urandom(4).hex()}.part"
    descriptor = os.open(part, _NEW, 0o666)  # the user's umask applies
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
    _sync_folder(path.parent)


def _file_mode(path: Path) -> int | None:
    """Return the file mode of a file, or of the target of a link; None if the file does not exist."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:  # also for a broken link
        return None


def _sync_folder(folder: Path) -> None:
    """Make the new name of a file survive a power failure. Some file systems do not support this."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
