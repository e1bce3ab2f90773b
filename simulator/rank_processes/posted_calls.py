"""The calls that ranks have made, with their data in shared memory, until a transport has moved the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from ddpsim.simulator.calls import Call, Signature
from ddpsim.simulator.kernel.answers import Move
from ddpsim.simulator.kernel.requests import Moved
from ddpsim.simulator.rank_processes.inbox import Inbox
from ddpsim.simulator.rank_processes.messages import Outcome
from ddpsim.simulator.rank_processes.parcels import Parcel, left_over
from ddpsim.simulator.transport.payload import Payload

MoveData = Callable[[Signature, Sequence[Any], Sequence[int]], Exception | None]


class _Posted:
    """A call that a rank has made, as a transport sees it."""

    __slots__ = ("call", "parcel", "payload")

    def __init__(self, call: Call, parcel: Parcel) -> None:
        self.call = call
        self.parcel = parcel
        self.payload: Payload | None = None
        """While its data moves."""


class PostedCalls:
    """The posted calls of all ranks."""

    def __init__(self, inboxes: Sequence[Inbox], move_data: MoveData) -> None:
        self._inboxes = inboxes
        self._move_data = move_data
        self._posted: dict[tuple[int, int], _Posted] = {}
        """By rank and handle."""

    def add(self, rank: int, handle: int, call: Call, parcel: Parcel) -> None:
        """Record a call that a rank has made."""
        self._posted[rank, handle] = _Posted(call, parcel)
        self._inboxes[rank].last_posted = handle

    def move(self, move: Move) -> Moved:
        """Move the data of calls that have met, and record the result for each rank."""
        posted = [self._posted.pop(name) for name in move.calls]
        for (rank, _), each in zip(move.calls, posted, strict=True):
            each.payload = self._inboxes[rank].child.arena.unpack(each.parcel)
        error = self._move_data(move.signature, posted, move.members)
        first = posted[0].call
        is_message = first.peer is not None
        for (rank, handle), each in zip(move.calls, posted, strict=True):
            assert each.payload is not None
            outcome = Outcome(
                error and copy(error),
                first.rank if is_message else None,
                move.members if is_message else (),
                left_over(each.payload),
            )
            self._inboxes[rank].completions.add(handle, outcome)
        return Moved(None if error is None else str(error))
