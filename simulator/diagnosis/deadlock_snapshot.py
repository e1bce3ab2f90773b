"""The state of all ranks at a deadlock, from which findings are made, and `WaitReason`: a reason for the waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, Call, Site
from ddpsim.simulator.matching.point_to_point import UnmatchedMessages
from ddpsim.simulator.matching.slots import PendingCollectives
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.waits import CallWait, Wait
from ddpsim.simulator.wording import ranges_text


class RankState(Enum):
    """What a rank does when no rank can run."""

    WAITING = "waiting"
    RETURNED = "returned"
    RAISED = "raised"
    SILENT = "silent"
    """Its record has no open call: it may have returned or raised, or be busy. Only for records of real jobs."""
    UNRECORDED = "unrecorded"


OF_RECORDS = (RankState.SILENT, RankState.UNRECORDED)
"""States of ranks whose end is not known; only for records of real jobs."""


@dataclass(frozen=True, slots=True)
class ThreadSnapshot:
    """A running thread that a rank has started."""

    number: int
    name: str
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """The state of one rank at a deadlock."""

    rank: int
    state: RankState
    wait: Wait | None = None
    last_call: Call | None = None
    optimizer_steps: int = 0
    error: str = ""
    """Type and message of the exception that it raised."""
    error_site: Site | None = None
    destroyed: Mapping[str, Site] = field(default_factory=dict)
    """The groups that it destroyed, each with the line that destroyed it."""
    threads: tuple[ThreadSnapshot, ...] = ()

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The waits of its program and of its threads."""
        return tuple(wait for wait in (self.wait, *(thread.wait for thread in self.threads)) if wait is not None)

    @property
    def calls(self) -> list[Call]:
        """The calls that its program and its threads wait in."""
        return [call for wait in self.waits if isinstance(wait, CallWait) for call in wait.calls]


@dataclass(frozen=True)
class OpenCalls:
    """Calls that wait: those of a collective that some ranks have not joined, or one side of a message."""

    calls: tuple[Call, ...]
    missing: tuple[int, ...]
    """Global ranks that have not made their call."""
    any_suffices: bool = False
    """True if one of the missing ranks is enough (a receive from any source)."""

    @property
    def arrived(self) -> tuple[int, ...]:
        """The ranks that made their call."""
        return tuple(sorted(call.rank for call in self.calls))

    def is_waiting_for(self, call: Call) -> bool:
        """Return True if these calls wait for that call."""
        here = self.calls[0]
        if here.group != call.group or call.rank not in self.missing:
            return False
        if not here.is_point_to_point or not call.is_point_to_point:
            return here.is_point_to_point == call.is_point_to_point and here.sequence == call.sequence
        return here.operation != call.operation and here.tag == call.tag and call.peer in (here.rank, ANY_SOURCE)

    @cached_property
    def presence_text(self) -> str:
        """The ranks that arrived and those that are missing, as text."""
        return f"arrived {ranges_text(self.arrived)} · missing {ranges_text(self.missing)}"


def collect_open_calls(slots: PendingCollectives, messages: UnmatchedMessages) -> tuple[OpenCalls, ...]:
    """Return the calls that wait: first those of each collective, then each send and receive."""
    collectives = [OpenCalls(tuple(slot.calls.values()), slot.missing) for slot in slots.list_pending()]
    return (*collectives, *(_open_message(call, slots) for call in messages.open_calls()))


def _open_message(call: Call, slots: PendingCollectives) -> OpenCalls:
    assert call.peer is not None
    if call.peer != ANY_SOURCE:
        return OpenCalls((call,), (call.peer,))
    others = tuple(rank for rank in slots.members_of(call.group) if rank != call.rank)
    return OpenCalls((call,), others, any_suffices=True)


class StreamSnapshot(NamedTuple):
    """A rank's calls on a backend that runs them one after another."""

    rank: int
    started: tuple[Call, ...]
    """Calls that run now."""
    queued: tuple[Call, ...]
    """Calls that start, in this order, once the running ones are complete."""


@dataclass(frozen=True)
class Snapshot:
    """All ranks and all waiting calls at a deadlock."""

    ranks: tuple[RankSnapshot, ...]
    open_slots: tuple[OpenCalls, ...]
    choice_points: int | None = 0
    """None if this was no simulation (a record of a real job)."""
    issued: tuple[Call, ...] = ()
    streams: tuple[StreamSnapshot, ...] = ()
    """The streams with queued calls, by rank."""
    left_behind: tuple[Call, ...] = ()
    """Calls of ranks that ended before they were connected with their peers (kernel/connections.py)."""

    @cached_property
    def slot_by_call(self) -> dict[Call, int]:
        """The index in `open_slots` of each waiting call."""
        return {call: index for index, slot in enumerate(self.open_slots) for call in slot.calls}

    @cached_property
    def stream_by_queued(self) -> dict[Call, StreamSnapshot]:
        """The stream in which each call is queued."""
        return {call: stream for stream in self.streams for call in stream.queued}

    def calls_of(self, ranks: Iterable[int]) -> list[Call]:
        """Return the calls that these ranks wait in."""
        return [call for rank in ranks for call in self.ranks[rank].calls]

    @cached_property
    def threads(self) -> dict[int, ThreadSnapshot]:
        """All threads by number; a rank's main thread has the rank's number and no name."""
        mains = {rank.rank: ThreadSnapshot(rank.rank, "", rank.wait) for rank in self.ranks}
        return mains | {thread.number: thread for rank in self.ranks for thread in rank.threads}


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One reason why ranks wait forever: a missing or dead rank, a cycle, or a store key."""

    code: Code
    culprits: tuple[int, ...]
    """The missing or dead ranks, the ranks of the cycle, or the ranks that wait for a store key."""
    victims: tuple[int, ...]
    """Every rank that waits for this, directly or through other ranks."""
    cycle: tuple[int, ...] = ()
    """The shortest cycle, starting at its lowest rank."""
    any_suffices: bool = False
    """True if one of the culprits would be enough (a receive from any source)."""
    threads: tuple[int, ...] = ()
    """The threads of a cycle within one rank, by number."""
    streams: tuple[int, ...] = ()
    """The ranks of a cycle in which calls wait for one another on a rank's stream."""
