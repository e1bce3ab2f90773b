"""What a rank's record says, whatever form it came in: the calls that it made, as the simulator's own values.

Most ranks of a job do the same, and records are long. So what a rank made stands apart from whose it is, as a `CallLog`
that ranks which did the same share; calls are made of it where somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple, overload

from ddpsim.simulator.calls import NOWHERE, Call, Signature, Site
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import POINT_TO_POINT

DEFAULT = "default"
"""The group of all ranks."""


class RecordError(UsageError):
    """A file that is no record that can be read; the text says what was found, and what was expected."""


class CallProgress(Enum):
    """How far a call had come when the record was written."""

    COMPLETE = "complete"
    UNFINISHED = "unfinished"
    UNKNOWN = "unknown"
    """The record does not say."""


class RecordedCall(NamedTuple):
    """A call that a rank made."""

    call: Call
    """Collectives are numbered as the record numbers them, from 0 on; messages in the order in which they stand."""
    progress: CallProgress


class Step(NamedTuple):
    """A call, without whose it is and what its group is called."""

    group: int
    """The number of its group, among those that the record has calls of."""
    sequence: int
    signature: Signature
    progress: CallProgress
    peer: int | None = None
    """The other rank of a message, in the group."""

    @property
    def is_collective(self) -> bool:
        """True for what all members of the group are to make."""
        return self.signature.operation not in POINT_TO_POINT


class Lane(NamedTuple):
    """The collectives of one group in a call log. Numbers that begin anew are of a new group: the last one counts."""

    first: int
    """The smallest number."""
    last: int
    begin: int
    """The index of the first step of the last group."""
    places: Mapping[int, int]
    """The index of the step with each number."""


@dataclass(frozen=True, eq=False)
class CallLog:
    """What a rank called, in order. Compared by identity: ranks that did the same share it."""

    steps: tuple[Step, ...]

    @cached_property
    def lanes(self) -> Mapping[int, Lane]:
        """The collectives of each group, by the group's number."""
        places: dict[int, dict[int, int]] = {}
        for index, step in enumerate(self.steps):
            if step.is_collective:
                own = places.setdefault(step.group, {})
                if own and step.sequence <= next(reversed(own)):
                    own.clear()
                own[step.sequence] = index
        return {
            group: Lane(next(iter(own)), next(reversed(own)), next(iter(own.values())), own)
            for group, own in places.items()
        }

    @cached_property
    def messages(self) -> tuple[int, ...]:
        """The indices of sends and receives."""
        return tuple(index for index, step in enumerate(self.steps) if step.peer is not None)

    @cached_property
    def channels(self) -> tuple[tuple[int, int], ...]:
        """Groups with the peers of messages in them."""
        steps = (self.steps[index] for index in self.messages)
        return tuple(dict.fromkeys((step.group, step.peer) for step in steps if step.peer is not None))

    @cached_property
    def progress(self) -> frozenset[CallProgress]:
        """All that is said of a call."""
        return frozenset(step.progress for step in self.steps)

    @cached_property
    def unfinished(self) -> tuple[int, ...]:
        """The indices of collectives that the record says are not complete."""
        steps = enumerate(self.steps)
        return tuple(index for index, step in steps if step.progress is CallProgress.UNFINISHED and step.is_collective)


@dataclass(frozen=True)
class RankRecord:
    """The record of one rank."""

    rank: int
    source: str
    """The file it was read from."""
    form: str
    """Such as "flight recorder 2.10"."""
    call_log: CallLog
    groups: tuple[str, ...]
    """The names of the groups of the call log, by their numbers."""
    sites: tuple[tuple[Site, Site | None], ...] = ()
    """The line of each step, and the one in another file that it was called from; () where the record has none."""
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The global ranks of the groups that the record describes, in group-rank order."""
    lost: int = 0
    """How many calls came before the first that the record still has."""
    not_recorded: int = 0
    """How many calls the rank made meanwhile that the recorder does not record: messages, on gloo."""
    is_in_one_group: bool = False
    """The record shows that the rank is in no group but the default one."""
    lacks: tuple[str, ...] = ()
    """What a record of this form has not, so that it is not compared: "reduction", "root", "splits"."""
    is_known: bool = True
    """False for a version that nobody here knows, read as the one that is known."""
    is_cut: bool = False
    """The file ends before its record does: what is left of it was read."""

    @cached_property
    def calls(self) -> RecordedCalls:
        """In the order in which the rank made them."""
        return RecordedCalls(self)

    @property
    def channels(self) -> Iterator[tuple[str, int]]:
        """Groups with the global ranks of peers of messages in them."""
        return ((self.groups[group], self.peer(group, rank)) for group, rank in self.call_log.channels)

    def peer(self, group: int, rank: int) -> int:
        """A rank of a group as a global one; as it is, where the members are not known."""
        members = self.members.get(self.groups[group], ())
        return members[rank] if 0 <= rank < len(members) else rank


class RecordedCalls(Sequence[RecordedCall]):
    """The calls of a record: each is made when it is asked for, and the same from then on."""

    def __init__(self, record: RankRecord) -> None:
        self._record = record
        self._made: dict[int, RecordedCall] = {}
        self._places: dict[int, int] = {}
        """The index of each call that was made, by its identity: a ring may have two that are equal."""

    def index_of(self, call: Call) -> int:
        """The place of a call that was asked for before."""
        return self._places[id(call)]

    def __len__(self) -> int:
        return len(self._record.call_log.steps)

    @overload
    def __getitem__(self, index: int) -> RecordedCall: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[RecordedCall, ...]: ...

    def __getitem__(self, index: int | slice) -> RecordedCall | tuple[RecordedCall, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        index = range(len(self))[index]
        if index not in self._made:
            made = self._made[index] = self._make(index)
            self._places[id(made.call)] = index
        return self._made[index]

    def _make(self, index: int) -> RecordedCall:
        record, step = self._record, self._record.call_log.steps[index]
        site, caller = record.sites[index] if record.sites else (NOWHERE, None)
        peer = None if step.peer is None else record.peer(step.group, step.peer)
        call = Call(
            record.rank, record.groups[step.group], step.sequence, step.signature, site, peer=peer, caller=caller
        )
        return RecordedCall(call, step.progress)


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Names with their numbers, in order of appearance."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}
