"""The processes of a job: those that have a variable of their own in their environment, wherever they went since."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from ddpsim.simulator.errors import UsageError

_PROC = "/proc"
_LOOK_SECONDS = 0.05


def check_platform() -> None:
    """Raise UsageError where nobody says which processes there are."""
    if not os.path.exists(f"{_PROC}/self/environ"):
        raise UsageError("--torchrun needs /proc, which Linux has: let the job write its records, and diagnose those")


def marked(variable: str, value: str) -> Iterator[int]:
    """The processes that were started with this variable."""
    mark = f"{variable}={value}".encode()
    for name in os.listdir(_PROC):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"{_PROC}/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    yield int(name)


def processor_seconds(process: int) -> float:
    """The processor time that a process has taken; 0 for one that has ended."""
    try:
        with open(f"{_PROC}/{process}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wanted_seconds(process: int) -> dict[int, float]:
    """The time that each thread of a process has run or waited for a core, by its number; {} where nobody says."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{_PROC}/{process}/task"):
            with open(f"{_PROC}/{process}/task/{thread}/schedstat", encoding="ascii") as file:
                found[int(thread)] = sum(map(int, file.read().split()[:2])) / 1e9
    return found


def end_all(variable: str, value: str, seconds: float) -> None:
    """Kill what is left of them, and what they start meanwhile."""
    end = time.monotonic() + seconds
    while (left := [each for each in marked(variable, value) if _is_alive(each)]) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def _is_alive(process: int) -> bool:
    """False for a zombie, too, which is its parent's."""
    try:
        with open(f"{_PROC}/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
