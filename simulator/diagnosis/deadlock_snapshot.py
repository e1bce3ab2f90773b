"""The state of all ranks at a deadlock, and `WaitReason`, a reason why ranks wait. Findings are made from both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, Call, Site
from ddpsim.simulator.matching.slots import PendingCollectives, UnmatchedMessages
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.waits import CallWait, Wait
from ddpsim.simulator.wording import ranges_text


class RankState(Enum):
    """What a rank does when no rank can continue."""

    WAITING = "waiting"
    RETURNED = "returned"
    RAISED = "raised"
    SILENT = "silent"
    """The rank's record has no open call: the rank may have returned or raised, or be busy. Real jobs only."""
    UNRECORDED = "unrecorded"


OF_RECORDS = (RankState.SILENT, RankState.UNRECORDED)
"""States of ranks whose end is not known; only for records of real jobs."""


@dataclass(frozen=True, slots=True)
class ThreadSnapshot:
    """A running thread that a rank's program has started."""

    number: int
    name: str
    wait: Wait | None = None
    is_daemon: bool = False


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """The state of one rank at a deadlock."""

    rank: int
    state: RankState
    wait: Wait | None = None
    last_call: Call | None = None
    optimizer_steps: int = 0
    error: str = ""
    """Type and message of the exception that the rank raised."""
    error_site: Site | None = None
    destroyed: Mapping[str, Site] = field(default_factory=dict)
    """The groups that the rank destroyed, each with the line of the program that destroyed it."""
    threads: tuple[ThreadSnapshot, ...] = ()

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The waits of the rank's program and of its threads."""
        return tuple(wait for wait in (self.wait, *(thread.wait for thread in self.threads)) if wait is not None)

    @property
    def calls(self) -> list[Call]:
        """The communication calls that the rank's program and its threads wait in."""
        return [call for wait in self.waits if isinstance(wait, CallWait) for call in wait.calls]


@dataclass(frozen=True)
class OpenCalls:
    """Calls that wait to be matched: a collective's while some ranks have not made theirs, or one side of a message."""

    calls: tuple[Call, ...]
    missing: tuple[int, ...]
    """The global ranks that have not made their call."""
    any_suffices: bool = False
    """True if one of the missing ranks is enough (a receive from any source)."""

    @property
    def arrived_ranks(self) -> tuple[int, ...]:
        """The ranks that have made their call."""
        return tuple(sorted(call.rank for call in self.calls))

    def is_waiting_for(self, call: Call) -> bool:
        """Return True if `call` is one of the calls that are missing here."""
        here = self.calls[0]
        if here.group != call.group or call.rank not in self.missing:
            return False
        if not here.is_point_to_point or not call.is_point_to_point:
            return here.is_point_to_point == call.is_point_to_point and here.sequence == call.sequence
        return here.operation != call.operation and here.tag == call.tag and call.peer in (here.rank, ANY_SOURCE)

    @cached_property
    def presence_text(self) -> str:
        """The ranks that arrived and those that are missing, as text."""
        return f"arrived {ranges_text(self.arrived_ranks)} · missing {ranges_text(self.missing)}"


def collect_open_calls(slots: PendingCollectives, messages: UnmatchedMessages) -> tuple[OpenCalls, ...]:
    """Return the waiting calls: first the calls of each collective, then each send and receive."""
    collectives = [OpenCalls(tuple(slot.calls.values()), slot.missing) for slot in slots.list_pending()]
    return (*collectives, *(open_message(call, slots.members_of(call.group)) for call in messages.open_calls()))


def open_message(call: Call, members: Sequence[int]) -> OpenCalls:
    """Return one side of a message as a waiting call; `members` are the ranks of its group."""
    assert call.peer is not None
    if call.peer != ANY_SOURCE:
        return OpenCalls((call,), (call.peer,))
    return OpenCalls((call,), tuple(rank for rank in members if rank != call.rank), any_suffices=True)


class StreamSnapshot(NamedTuple):
    """The calls of one rank on a backend that runs a rank's calls one after another."""

    rank: int
    started: tuple[Call, ...]
    """The calls that run now."""
    queued: tuple[Call, ...]
    """The calls that start, in this order, once the running calls are complete."""


class OutsideCall(NamedTuple):
    """An operation that a rank called on a group in which it is not: torch warns, and makes no call."""

    rank: int
    operation: str
    site: Site


@dataclass(frozen=True)
class Snapshot:
    """The state of all ranks and all waiting calls at a deadlock."""

    ranks: tuple[RankSnapshot, ...]
    open_slots: tuple[OpenCalls, ...]
    choice_points: int | None = 0
    """How many choices the scheduler made; None for the record of a real job."""
    issued: tuple[Call, ...] = ()
    streams: tuple[StreamSnapshot, ...] = ()
    """By rank, the streams (queues of a backend) with queued calls."""
    left_behind: tuple[Call, ...] = ()
    """Calls of ranks that ended before they connected to their peers (kernel/run.py)."""
    outside: tuple[OutsideCall, ...] = ()

    @cached_property
    def open_calls_by_call(self) -> dict[Call, int]:
        """For each waiting call, the index of the entry in `open_slots` that has the call."""
        return {call: index for index, slot in enumerate(self.open_slots) for call in slot.calls}

    @cached_property
    def stream_by_queued(self) -> dict[Call, StreamSnapshot]:
        """For each queued call, the stream (queue of a backend) that has it."""
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
    """The ranks that cause the wait: missing or dead ranks, ranks of the cycle, or ranks that wait for a store key."""
    victims: tuple[int, ...]
    """Every rank that waits for this reason, directly or through other ranks."""
    cycle: tuple[int, ...] = ()
    """The shortest cycle of ranks that wait for each other, starting at its lowest rank."""
    any_suffices: bool = False
    """True if a call of one of the culprits would be enough (a receive from any source)."""
    threads: tuple[int, ...] = ()
    """The numbers of the threads in a cycle within one rank."""
    streams: tuple[int, ...] = ()
    """For a cycle through streams (queues of a backend), the ranks whose streams are in the cycle."""
