"""Streams: on a backend that runs a rank's calls one after another, these queues tell which calls have started.

They only keep records; `call_matching.py` counts a call as arrived at its collective once the call has started.
"""

from collections import deque

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.deadlock_snapshot import StreamSnapshot
from ddpsim.simulator.kernel.tasks import IssuedCall
from ddpsim.simulator.operations import CREATING


class _RankStream:
    """The stream of one rank: a queue of its communication calls, which start one after another."""

    __slots__ = ("batch", "queued", "started")

    def __init__(self) -> None:
        self.started: list[tuple[IssuedCall, int]] = []
        """Calls under way, with their batch number: one call, or the calls of one batch."""
        self.queued: deque[tuple[IssuedCall, int]] = deque()
        self.batch = 0
        """The number of the open batch; 0 if none is open."""

    def start_next_calls(self, starting: deque[IssuedCall]) -> None:
        """Start the next call in the queue if no other call is under way. The calls of one batch start together."""
        while self.queued and (not self.started or self.started[0][1] == self.queued[0][1] != 0):
            self.started.append(self.queued.popleft())
            starting.append(self.started[-1][0])


class CallStreams:
    """The streams of all ranks: for each rank, a queue of its communication calls."""

    def __init__(self, world_size: int, *, batch_is_unit: bool) -> None:
        self._streams = [_RankStream() for _ in range(world_size)]
        self._batch_is_unit = batch_is_unit
        self._batches = 0
        self._left_out: set[str] = set()
        """Groups whose calls start at once and do not wait in a stream."""

    def exempt_group(self, group: str) -> None:
        """Let a group's calls start as soon as they are issued, without waiting for earlier calls of their rank."""
        self._left_out.add(group)

    def holds_call(self, call: Call) -> bool:
        """True for a call that has to wait for earlier calls of its rank. Calls that create groups do not wait."""
        return call.operation not in CREATING and call.group not in self._left_out

    def open_batch(self, rank: int) -> None:
        """Begin a batch of a rank: its next calls start together, if the backend can do that."""
        if self._batch_is_unit:
            self._batches += 1
            self._streams[rank].batch = self._batches

    def close_batch(self, rank: int) -> None:
        """End the batch of a rank: its next calls start one after another again."""
        self._streams[rank].batch = 0

    def queue_call(self, issued: IssuedCall, starting: deque[IssuedCall]) -> bool:
        """Put a call at the end of its rank's stream. True if it can start; it is then added to `starting`."""
        stream = self._streams[issued.rank.rank]
        stream.queued.append((issued, stream.batch))
        stream.start_next_calls(starting)
        return not stream.queued

    def remove_call(self, issued: IssuedCall, starting: deque[IssuedCall]) -> None:
        """Remove a completed call from its rank's stream, and add the calls that can now start to `starting`."""
        if not self.holds_call(issued.call):
            return
        stream = self._streams[issued.rank.rank]
        stream.started = [each for each in stream.started if each[0] is not issued]
        stream.start_next_calls(starting)

    def snapshot(self) -> tuple[StreamSnapshot, ...]:
        """Return, by rank, the streams (queues of a rank's calls) in which calls wait for earlier calls."""
        return tuple(
            StreamSnapshot(
                rank,
                tuple(issued.call for issued, _ in stream.started),
                tuple(issued.call for issued, _ in stream.queued),
            )
            for rank, stream in enumerate(self._streams)
            if stream.queued
        )
