"""Files in memory in which a rank writes its output and stack, and the signals that the coordinator sends to it."""

import os
import pickle
import re
import signal
from contextlib import ExitStack
from typing import NamedTuple, NoReturn

from ddpsim.simulator.errors import InternalError, make_internal_error
from ddpsim.simulator.kernel.requests import StackReport

_PICKLED = b"stack:"
_NATIVE_LINE = re.compile(r'  File "(.*)", line (\d+) in (.*)')


# Real-time signals, which programs do not use.
TELL_STACK = signal.SIGRTMIN + 11
"""The signal that makes a rank write the stack of its running thread, by Python code."""
TELL_NATIVE_STACK = signal.SIGRTMIN + 12
"""The signal that makes a rank write the stacks of all threads by native code, in case Python code cannot run."""
UNWIND_PROGRAM = signal.SIGRTMIN + 13
"""The signal that makes a rank leave its program, by an exception in the main thread."""


class RankFiles(NamedTuple):
    """The files of one rank, opened before the fork; the rank writes, the coordinator reads."""

    output: int
    errors: int
    stack: int

    @classmethod
    def open_rank_files(cls) -> "RankFiles":
        """Open new files. Raises OSError if the system has no files left."""
        with ExitStack() as closing:
            files = []
            for name in cls._fields:
                files.append(os.memfd_create(name))
                closing.callback(os.close, files[-1])
            closing.pop_all()
        return cls(*files)

    def close(self) -> None:
        """Close the files in this process."""
        for file in self:
            os.close(file)


BROKEN_STATUS = 70
"""The exit status after an internal error of the simulator; EX_SOFTWARE of sysexits.h."""

_BROKEN = b"broken:"


def exit_with_internal_error(file: int, error: BaseException, where: str) -> NoReturn:
    """End this process because the simulator's own code failed. The report goes into the file in memory."""
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, _BROKEN + str(make_internal_error(error, where)).encode(errors="replace"), 0)
    finally:
        os._exit(BROKEN_STATUS)


def raise_reported_internal_error(file: int) -> None:
    """Raise InternalError with the report of `exit_with_internal_error`, if the file has one."""
    data = os.pread(file, 1 << 20, 0)
    if data.startswith(_BROKEN):
        raise InternalError(data[len(_BROKEN) :].decode(errors="replace"))


def write_rank_stack(file: int, stack: StackReport) -> None:
    """Write the current stack of a rank."""
    os.pwrite(file, _PICKLED + pickle.dumps(stack), 0)


def read_rank_stack(file: int) -> StackReport | None:
    """Return the current stack of a rank; None if it has not written one yet."""
    data = os.pread(file, 1 << 20, 0)
    if data.startswith(_PICKLED):
        try:
            stack: StackReport = pickle.loads(data[len(_PICKLED) :])
        except Exception:  # it is still being written
            return None
        return stack
    text = data.decode(errors="replace")
    return StackReport(_to_python_format(text)) if text.endswith("\n") else None


def _to_python_format(text: str) -> str:
    """Convert the first stack of faulthandler's report to Python's format, innermost frame last."""
    lines = []
    for line in text.split("\n\n", 1)[0].splitlines():
        if found := _NATIVE_LINE.match(line):
            path, number, function = found.groups()
            lines.append(f'  File "{path}", line {number}, in {function}\n')
    return "".join(reversed(lines))
