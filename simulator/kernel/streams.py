"""Streams: on a backend that runs the calls of a rank one after another, which of them have started.

Pure bookkeeping; `exchange.py` lets a call arrive where it meets others only once it has started.
"""

from __future__ import annotations

from collections import deque

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.deadlock_snapshot import StreamSnapshot
from ddpsim.simulator.kernel.tasks import IssuedCall
from ddpsim.simulator.operations import CREATING


class _Stream:
    """That of one rank."""

    __slots__ = ("batch", "queued", "started")

    def __init__(self) -> None:
        self.started: list[tuple[IssuedCall, int]] = []
        """Under way, with their batch: one call, or calls of one batch."""
        self.queued: deque[tuple[IssuedCall, int]] = deque()
        self.batch = 0
        """The one that is open, by number; 0 for none."""

    def start(self, starting: deque[IssuedCall]) -> None:
        """Start the next one if none is under way, and with one of a batch the others of the batch."""
        while self.queued and (not self.started or self.started[0][1] == self.queued[0][1] != 0):
            self.started.append(self.queued.popleft())
            starting.append(self.started[-1][0])


class Streams:
    """Those of all ranks."""

    def __init__(self, world_size: int, *, batch_is_unit: bool) -> None:
        self._streams = [_Stream() for _ in range(world_size)]
        self._batch_is_unit = batch_is_unit
        self._batches = 0
        self._left_out: set[str] = set()
        """Groups whose calls run beside the streams. Only asked about."""

    def leave_out(self, group: str) -> None:
        """Let the calls of a group run beside the streams."""
        self._left_out.add(group)

    def has(self, call: Call) -> bool:
        """True for a call that runs on its rank's stream; making a group is none."""
        return call.operation not in CREATING and call.group not in self._left_out

    def open_batch(self, rank: int) -> None:
        """What a rank issues from here on is one unit, if the backend has such."""
        if self._batch_is_unit:
            self._batches += 1
            self._streams[rank].batch = self._batches

    def close_batch(self, rank: int) -> None:
        """The unit is whole."""
        self._streams[rank].batch = 0

    def join(self, issued: IssuedCall, starting: deque[IssuedCall]) -> bool:
        """Put a call at the end of its rank's stream; add it to those `starting` if it does, and say so."""
        stream = self._streams[issued.rank.rank]
        stream.queued.append((issued, stream.batch))
        stream.start(starting)
        return not stream.queued

    def leave(self, issued: IssuedCall, starting: deque[IssuedCall]) -> None:
        """A call is complete: add those to `starting` that do now."""
        if not self.has(issued.call):
            return
        stream = self._streams[issued.rank.rank]
        stream.started = [each for each in stream.started if each[0] is not issued]
        stream.start(starting)

    def snapshot(self) -> tuple[StreamSnapshot, ...]:
        """Those in which a call waits for others, by rank."""
        return tuple(
            StreamSnapshot(
                rank,
                tuple(issued.call for issued, _ in stream.started),
                tuple(issued.call for issued, _ in stream.queued),
            )
            for rank, stream in enumerate(self._streams)
            if stream.queued
        )
