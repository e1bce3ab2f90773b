"""The files in memory that a rank writes outside its messages: its output, and its current stack."""

from __future__ import annotations

import os
import pickle
import re
from typing import NoReturn

from ddpsim.simulator.errors import InternalError, internal_error
from ddpsim.simulator.kernel.requests import StackTold

_PICKLED = b"stack:"
_NATIVE_LINE = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Files:
    """Made before the fork; the rank writes, the coordinator reads."""

    def __init__(self, made: tuple[int, int, int] | None = None) -> None:
        """Of files that are made already, if they are given. Raises OSError if the system gives no more."""
        self.output, self.errors, self.stack = made or _made()

    def close(self) -> None:
        """Close them here."""
        for file in (self.output, self.errors, self.stack):
            os.close(file)


def _made() -> tuple[int, ...]:
    files: list[int] = []
    try:
        for name in ("output", "errors", "stack"):
            files.append(os.memfd_create(name))
    except OSError:
        for file in files:
            os.close(file)
        raise
    return tuple(files)


BROKEN_STATUS = 70
"""The exit status of a process in which something of ours broke; EX_SOFTWARE of sysexits.h."""

_BROKEN = b"broken:"


def end_broken(file: int, error: BaseException, where: str) -> NoReturn:
    """End this process because the simulator's own code failed. The report goes into the file in memory."""
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, _BROKEN + str(internal_error(error, where)).encode(errors="replace"), 0)
    finally:
        os._exit(BROKEN_STATUS)


def check_broken(file: int) -> None:
    """Raise InternalError with the report of `end_broken`, if the file has one."""
    data = os.pread(file, 1 << 20, 0)
    if data.startswith(_BROKEN):
        raise InternalError(data[len(_BROKEN) :].decode(errors="replace"))


def write_stack(file: int, told: StackTold) -> None:
    """Write the current stack of a rank."""
    os.pwrite(file, _PICKLED + pickle.dumps(told), 0)


def read_stack(file: int) -> StackTold | None:
    """Return the current stack of a rank; None if it has not written one yet."""
    data = os.pread(file, 1 << 20, 0)
    if data.startswith(_PICKLED):
        try:
            told: StackTold = pickle.loads(data[len(_PICKLED) :])
        except Exception:  # it is still being written
            return None
        return told
    text = data.decode(errors="replace")
    return StackTold(_as_python_writes(text)) if text.endswith("\n") else None


def _as_python_writes(text: str) -> str:
    """faulthandler's stack of the first thread it tells of, innermost last."""
    lines = []
    for line in text.split("\n\n", 1)[0].splitlines():
        if found := _NATIVE_LINE.match(line):
            path, number, function = found.groups()
            lines.append(f'  File "{path}", line {number}, in {function}\n')
    return "".join(reversed(lines))
