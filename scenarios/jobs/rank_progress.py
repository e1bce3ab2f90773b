"""Detect whether a rank makes progress, and for how long it has made none."""

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ddpsim.simulator.records.record_texts import CPP_DTYPES

BUSY_SHARE = 0.1
"""The share of a core from which a process counts as computing. A process that only waits uses almost none."""
PATIENCE = 6
"""How many time-outs one source line may compute, or a rank may wait for another rank, before it counts as hung."""


class ActiveClock:
    """A clock that counts at most `most` seconds between two calls.

    So a process that was stopped for a while does not seem to hang.
    """

    def __init__(self, most: float, source: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._source = source
        self._passed = 0.0
        self._looked = source()

    def active_seconds(self) -> float:
        """Return the seconds that have passed, without those in which the process was stopped."""
        looked = self._source()
        self._passed += min(looked - self._looked, self._most)
        self._looked = looked
        return self._passed


class UnchangedTimer:
    """Measures for how long a value has not changed."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = 0.0

    def unchanged_seconds(self, value: object, now: float) -> float:
        """Return for how many seconds the value has stayed the same. `value` is the present value."""
        if value != self._value:
            self._value, self._since = value, now
        return now - self._since


class JobRankProgress:
    """Measures the progress of the main thread. Another thread calls `idle_seconds` every `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self._main = threading.main_thread().ident or 0
        self._clock = ActiveClock(2 * interval)
        self._busy_checks = 0
        self._looked = self._used = 0.0
        """When the processor time of the process was last measured, and how much the process had used then."""
        self._asleep = UnchangedTimer()
        self._computing = UnchangedTimer()

    def idle_seconds(self) -> tuple[float, float]:
        """Return for how many seconds there was neither progress nor computing, and for how many no new line or call.

        A call that begins or completes is progress. While no call is in flight, every instruction is progress. For the
        second duration only a new line or call counts, because an endless loop and a large operation both stay on one
        line.
        """
        recording = read_recorder()
        frames = [] if recording.in_flight else self._main_thread_frames()
        instructions = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        lines = tuple((id(frame.f_code), frame.f_lineno) for frame in frames)
        now = self._clock.active_seconds()
        self._count_busy_check()
        asleep = self._asleep.unchanged_seconds(
            (recording, instructions, self._busy_checks, _main_thread_sleep_count()), now
        )
        return asleep, self._computing.unchanged_seconds((recording, lines), now)

    def _main_thread_frames(self) -> list[FrameType]:
        return [frame for frame, _ in traceback.walk_stack(sys._current_frames().get(self._main))]

    def _count_busy_check(self) -> None:
        """Count this check as busy if the process has used the processor since the check before."""
        now = time.monotonic()
        used = time.process_time() - time.thread_time()  # without the watch thread itself
        self._busy_checks += used - self._used > BUSY_SHARE * (now - self._looked)
        self._looked, self._used = now, used


def _main_thread_sleep_count() -> int:
    """Return how often the main thread has gone to sleep; 0 on systems without /proc."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/status", encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith("voluntary_ctxt_switches:")]
        return int(lines[0].split()[1])
    except (OSError, LookupError, ValueError):
        return 0


KEPT = 64
"""How many of the last calls of a rank the recorder keeps."""

_READER = "_dump_fr_trace"
"""The private torch function that dumps the flight recorder: the last collectives on gloo, without messages between two
ranks. Newer torch versions have one recorder per backend, and an argument for the backend that torch 2.13 lacks."""


@dataclass(frozen=True, slots=True)
class LastCalls:
    """The last calls of a rank, the earliest call first."""

    calls: tuple[str, ...] = ()
    in_flight: bool = False
    """True if one of the calls has not completed."""


def enable_recorder() -> None:
    """Make this process record its calls. It has to be called before the first group is made."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(KEPT)


def has_recorder() -> bool:
    """Return True if this torch has a recorder that can be read."""
    return hasattr(torch._C._distributed_c10d, _READER)


def read_recorder() -> LastCalls:
    """Return the calls that the recorder holds now."""
    entries = _recorder_entries() or _recorder_entries(backend="gloo")
    return LastCalls(tuple(map(_entry_text, entries)), any(not entry.get("retired", True) for entry in entries))


def _recorder_entries(**backend: str) -> Sequence[Mapping[str, Any]]:
    if not has_recorder():
        return ()
    try:
        dump = getattr(torch._C._distributed_c10d, _READER)(**backend)
    except TypeError:  # there is one recorder for all backends
        return ()
    entries: Sequence[Mapping[str, Any]] = pickle.loads(dump).get("entries", ())
    return entries


def _entry_text(entry: Mapping[str, Any]) -> str:
    """Return an entry of the recorder as text: `all_reduce #3 float32[110] group "default" in flight`."""
    operation = str(entry.get("profiling_name", "?")).removeprefix("gloo:")
    key = "p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"
    number = entry.get(key, 0) - 1  # the recorder counts from 1, ddpsim from 0
    name, description = (*entry.get("process_group", ()), "", "")[:2]
    group = "default" if description == "default_pg" else name
    parts = [f"{operation} #{number}", _tensors_text(entry), f'group "{group}"']
    parts += [] if entry.get("retired", True) else ["in flight"]
    return "  ".join(part for part in parts if part)


def _tensors_text(entry: Mapping[str, Any]) -> str:
    sizes: Sequence[Sequence[int]] = entry.get("input_sizes", ())
    dtypes = [CPP_DTYPES.get(name, name) for name in entry.get("input_dtypes", ())]
    shown = [f"{dtype}{list(size)}" for dtype, size in zip(dtypes, sizes, strict=False)]
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")
