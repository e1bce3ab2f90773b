"""Clocks for the limits of wall time, on which a busy machine has no effect."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import get_native_id

import pytest

from ddpsim.simulator.runtime import stopwatch

MOST_SECONDS = 0.1
"""What goes by at most from one look at the clock to the next, which are 0.05 s apart if the machine is idle."""


def limits_go_by(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[], float]) -> None:
    """Let the limits of the runs of a test go by another clock than the wall's."""
    monkeypatch.setattr(stopwatch, "monotonic", seconds)


class SecondsAsleep:
    """Wall time in which all other threads of this process slept, and those of its children."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._looked = time.monotonic()

    def __call__(self) -> float:
        """Those that have gone by. What is about to run, and has no core, does not sleep."""
        now = time.monotonic()
        if all(map(_sleeps, _others())):
            self._seconds += min(now - self._looked, MOST_SECONDS)
        self._looked = now
        return self._seconds


def _others() -> list[Path]:
    found, processes = [], [Path("/proc/self")]
    for process in processes:
        for thread in process.glob("task/*"):
            found.append(thread)
            with suppress(OSError):
                processes += [Path("/proc", child) for child in (thread / "children").read_text().split()]
    return [thread for thread in found if thread.name != str(get_native_id())]


def _sleeps(thread: Path) -> bool:
    with suppress(OSError):  # it has ended
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "RD"
    return True
