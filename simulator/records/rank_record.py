"""The record of one rank in the simulator's own values, independent of its file format.

Most ranks of a job make the same calls, and records are long. So the calls are in a `CallLog` without the rank, which
ranks with equal calls share. Call objects are made only when they are used.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from ddpsim.simulator.calls import NOWHERE, Call, Signature, Site
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import POINT_TO_POINT

DEFAULT = "default"


class RecordError(UsageError):
    """A file cannot be read as a record. The text says what was found, and what was expected."""


class CallProgress(Enum):
    """How far a call had come when its record was written."""

    COMPLETE = "complete"
    UNFINISHED = "unfinished"
    UNKNOWN = "unknown"


class RecordedCall(NamedTuple):
    """A call that a rank made, according to its record."""

    call: Call
    """The call. A collective has the record's number, from 0; messages are numbered in the order of the record."""
    progress: CallProgress


class LoggedCall(NamedTuple):
    """A call in a record, without its rank and its group's name."""

    group: int
    """The number of the call's group among the groups of the call log."""
    sequence: int
    signature: Signature
    progress: CallProgress
    peer: int | None = None
    """The other rank of a message, as a rank in the group."""

    @property
    def is_collective(self) -> bool:
        """Return True if all members of the group have to make the call."""
        return self.signature.operation not in POINT_TO_POINT


class GroupCollectives(NamedTuple):
    """The collectives of one group in a call log. If the record's numbers restart, those after the last restart."""

    first: int
    last: int
    begin: int
    """The index in the log of the first call after the last restart."""
    places: Mapping[int, int]
    """For each collective's number, the index of its call in the log."""


@dataclass(frozen=True, eq=False)
class CallLog:
    """The calls of a rank, in order. Compared by identity, because ranks with equal calls share it."""

    steps: tuple[LoggedCall, ...]

    @cached_property
    def collectives_by_group(self) -> Mapping[int, GroupCollectives]:
        """For each group's number, the collectives of the group."""
        places: dict[int, dict[int, int]] = {}
        for index, step in enumerate(self.steps):
            if step.is_collective:
                own = places.setdefault(step.group, {})
                if own and step.sequence <= next(reversed(own)):
                    own.clear()
                own[step.sequence] = index
        return {
            group: GroupCollectives(next(iter(own)), next(reversed(own)), next(iter(own.values())), own)
            for group, own in places.items()
        }

    @cached_property
    def message_indices(self) -> tuple[int, ...]:
        """The indices in the log of sends and receives."""
        return tuple(index for index, step in enumerate(self.steps) if step.peer is not None)

    @cached_property
    def progress_values(self) -> frozenset[CallProgress]:
        """All progress values of calls in the log."""
        return frozenset(step.progress for step in self.steps)

    @cached_property
    def unfinished_indices(self) -> tuple[int, ...]:
        """The indices in the log of collectives that are not complete."""
        steps = enumerate(self.steps)
        return tuple(index for index, step in steps if step.progress is CallProgress.UNFINISHED and step.is_collective)


@dataclass(frozen=True)
class RankRecord:
    """The record of one rank: its calls, and what the file says about them."""

    rank: int
    source: str
    """The path of the file that the record was read from."""
    form: str
    """The format of the file, such as "flight recorder 2.10"."""
    call_log: CallLog
    groups: tuple[str, ...]
    """The names of the call log's groups, by their numbers."""
    sites: tuple[tuple[Site, Site | None], ...] = ()
    """For each call, its line and the calling line in another file; () if the record has no lines."""
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each group that the record describes, the global ranks of its members in group-rank order."""
    lost: int = 0
    """The number of calls that the record has lost, before its first one."""
    not_recorded: int = 0
    """The number of calls that the recorder counted without recording them: messages, on gloo."""
    is_in_one_group: bool = False
    """True if the record shows that the rank is in no group but the default one."""
    lacks: tuple[str, ...] = ()
    """Details that the file's format lacks: "reduction", "root", "splits". They are not compared."""
    is_known: bool = True
    """False if the file's version is unknown; the file was then read like the known version."""
    is_cut: bool = False
    """True if the file ends too early; the part before that was read."""

    @cached_property
    def calls(self) -> "RecordedCalls":
        """Return the calls in the order in which the rank made them."""
        return RecordedCalls(self)

    @property
    def groups_and_global_peers(self) -> Iterator[tuple[str, int]]:
        """Yield pairs of a group and the global rank of the peer of a message in the group."""
        steps = (self.call_log.steps[index] for index in self.call_log.message_indices)
        pairs = dict.fromkeys((step.group, step.peer) for step in steps if step.peer is not None)
        return ((self.groups[group], self.global_rank(group, rank)) for group, rank in pairs)

    def global_rank(self, group: int, rank: int) -> int:
        """Return the global rank for a rank of a group; the same number if the group's members are unknown."""
        members = self.members.get(self.groups[group], ())
        return members[rank] if 0 <= rank < len(members) else rank


class RecordedCalls:
    """The calls of a record, as `Call` objects. Each is made when it is first used, and kept."""

    def __init__(self, record: RankRecord) -> None:
        self._record = record
        self._made: dict[int, RecordedCall] = {}
        self._places: dict[int, int] = {}
        """By a call object's identity, the index of the call: a record may have two equal calls."""

    def index_of(self, call: Call) -> int:
        """Return the index in the record of a call object that was returned before."""
        return self._places[id(call)]

    def __len__(self) -> int:
        return len(self._record.call_log.steps)

    def __iter__(self) -> Iterator[RecordedCall]:
        return map(self.__getitem__, range(len(self)))

    def last_calls(self, count: int) -> Iterator[RecordedCall]:
        """Return the last `count` calls of the record, or all if it has fewer."""
        return map(self.__getitem__, range(len(self))[-count:])

    def __getitem__(self, index: int) -> RecordedCall:
        index = range(len(self))[index]
        if index not in self._made:
            made = self._made[index] = self._make_call(index)
            self._places[id(made.call)] = index
        return self._made[index]

    def _make_call(self, index: int) -> RecordedCall:
        record, step = self._record, self._record.call_log.steps[index]
        site, caller = record.sites[index] if record.sites else (NOWHERE, None)
        peer = None if step.peer is None else record.global_rank(step.group, step.peer)
        group = record.groups[step.group]
        call = Call(record.rank, group, step.sequence, step.signature, site, peer=peer, caller=caller)
        return RecordedCall(call, step.progress)
