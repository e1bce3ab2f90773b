"""What diagnosis looks at: every rank as it stood when nobody could go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, Call, Site
from ddpsim.simulator.waits import CallWait, Wait
from ddpsim.simulator.wording import numbers


class RankState(Enum):
    """Where a rank stands when nobody is enabled."""

    WAITING = "waiting"
    RETURNED = "returned"
    RAISED = "raised"
    SILENT = "silent"
    """Its record has no call that is open: it may have returned or raised, or be busy. Of records of real jobs only."""
    UNRECORDED = "unrecorded"
    """There is no record of it."""


OF_RECORDS = (RankState.SILENT, RankState.UNRECORDED)
"""States of ranks of which nobody knows what has become of them."""


@dataclass(frozen=True, slots=True)
class ThreadSnapshot:
    """A thread that a rank has started, and that has not ended."""

    number: int
    name: str
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """One rank."""

    rank: int
    state: RankState
    wait: Wait | None = None
    last_call: Call | None = None
    calls_made: int = 0
    optimizer_steps: int = 0
    error: str = ""
    """Type and message of what it raised."""
    error_site: Site | None = None
    destroyed: Mapping[str, Site] = field(default_factory=dict)
    """The groups that it destroyed, and the lines that did."""
    threads: tuple[ThreadSnapshot, ...] = ()

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What its program and its threads wait for."""
        return tuple(wait for wait in (self.wait, *(thread.wait for thread in self.threads)) if wait is not None)

    @property
    def calls(self) -> list[Call]:
        """The calls that its program and its threads wait in."""
        return [call for wait in self.waits if isinstance(wait, CallWait) for call in wait.calls]


@dataclass(frozen=True)
class OpenSlot:
    """Where waiting calls meet: a slot that is not full, or one side of a message."""

    calls: tuple[Call, ...]
    missing: tuple[int, ...]
    """Global ranks that have not come."""
    any_suffices: bool = False
    """True if one of the missing ranks is enough (a receive from any source)."""

    @property
    def arrived(self) -> tuple[int, ...]:
        """The ranks that are here."""
        return tuple(sorted(call.rank for call in self.calls))

    def lacks(self, call: Call) -> bool:
        """True if a call that has not come yet belongs here."""
        here = self.calls[0]
        if here.group != call.group or call.rank not in self.missing:
            return False
        if not here.is_point_to_point or not call.is_point_to_point:
            return here.is_point_to_point == call.is_point_to_point and here.sequence == call.sequence
        return here.operation != call.operation and here.tag == call.tag and call.peer in (here.rank, ANY_SOURCE)

    @cached_property
    def presence(self) -> str:
        """Who is here and who is not; put in words once for all that wait here."""
        return f"arrived {numbers(self.arrived)} · missing {numbers(self.missing)}"


class StreamSnapshot(NamedTuple):
    """A rank's calls on a backend that runs them one after another, where one waits for another."""

    rank: int
    started: tuple[Call, ...]
    """Under way."""
    queued: tuple[Call, ...]
    """Issued, and to be started once those are complete, in this order."""


@dataclass(frozen=True)
class Snapshot:
    """All ranks and all open slots, when nobody was enabled."""

    ranks: tuple[RankSnapshot, ...]
    open_slots: tuple[OpenSlot, ...]
    choice_points: int | None = 0
    """None for what was no simulation."""
    issued: tuple[Call, ...] = ()
    """All calls that were made so far."""
    streams: tuple[StreamSnapshot, ...] = ()
    """Those in which calls are queued, by rank."""
    left_behind: tuple[Call, ...] = ()
    """Those of ranks that ended before they were connected with whom they called (kernel/connections.py)."""

    @cached_property
    def slot_by_call(self) -> dict[Call, int]:
        """The index of the slot that each call waits in."""
        return {call: index for index, slot in enumerate(self.open_slots) for call in slot.calls}

    @cached_property
    def stream_by_queued(self) -> dict[Call, StreamSnapshot]:
        """The stream in which each call is queued."""
        return {call: stream for stream in self.streams for call in stream.queued}

    @cached_property
    def threads(self) -> dict[int, ThreadSnapshot]:
        """All threads by number; the program of a rank has the rank's number, and no name."""
        mains = {rank.rank: ThreadSnapshot(rank.rank, "", rank.wait) for rank in self.ranks}
        return mains | {thread.number: thread for rank in self.ranks for thread in rank.threads}
