"""The files in memory by which a rank's process tells what is no message: its output, and where it stands."""

from __future__ import annotations

import os
import pickle
import re

from ddpsim.simulator.errors import InternalError
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
"""With which a process ends in which something of ours broke before its program began; EX_SOFTWARE of sysexits.h."""

_BROKEN = b"ddpsim broke:\n"


def write_broken(errors: int, trace: str) -> None:
    """Write why it ends so."""
    os.write(errors, _BROKEN + trace.encode(errors="replace"))


def check_broken(errors: int) -> None:
    """Raise InternalError if that stands there."""
    data = os.pread(errors, 1 << 20, 0)
    if data.startswith(_BROKEN):
        trace = data[len(_BROKEN) :].decode(errors="replace").strip()
        raise InternalError(f"the process of a rank broke before its program began, please report this:\n{trace}")


def write_stack(file: int, told: StackTold) -> None:
    """Write where a rank stands."""
    os.pwrite(file, _PICKLED + pickle.dumps(told), 0)


def read_stack(file: int) -> StackTold | None:
    """Where a rank stands; None if it has not said so yet."""
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
