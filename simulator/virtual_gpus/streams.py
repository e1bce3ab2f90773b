"""Streams and events of virtual GPUs: what a program queues is done at once."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import torch

_SHORTEST_MILLISECONDS = 0.001
"""Between two events, since programs divide by it."""


class Event:
    """Stands for torch.cuda.Event."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._recorded_at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Take the time, by the clock that the rank has."""
        self._recorded_at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """All that came before is done."""

    def synchronize(self) -> None:
        """All that came before is done."""

    def query(self) -> bool:
        """All that came before is done."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """The milliseconds between two recorded events, more than none."""
        if self._recorded_at is None or end_event._recorded_at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return max((end_event._recorded_at - self._recorded_at) * 1000, _SHORTEST_MILLISECONDS)


class Stream:
    """Stands for torch.cuda.Stream."""

    stream_id = 0
    cuda_stream = 0
    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device = torch.device("cuda") if device is None else device
        self.priority = priority

    def wait_stream(self, stream: Any) -> None:
        """All that was queued there is done."""

    def wait_event(self, event: Any) -> None:
        """All that came before it is done."""

    def synchronize(self) -> None:
        """All that was queued is done."""

    def is_capturing(self) -> bool:
        """There are no graphs."""
        return False

    def query(self) -> bool:
        """All that was queued is done."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """Take the time."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class StreamContext:
    """Stands for what torch.cuda.stream returns."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
