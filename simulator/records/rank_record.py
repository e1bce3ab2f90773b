"""The record of one rank in the simulator's own values, independent of its file format.

Most ranks of a job make the same calls, and records are long. So the calls are in a `CallLog` without the rank, which
ranks with equal calls share. Call objects are made only when they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from ddpsim.simulator.calls import NOWHERE, Call, Signature, Site
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import POINT_TO_POINT

DEFAULT = "default"
"""The group of all ranks."""


class RecordError(UsageError):
    """A file that cannot be read as a record; the text says what was found, and what was expected."""


class CallProgress(Enum):
    """How far a call had come when the record was written."""

    COMPLETE = "complete"
    UNFINISHED = "unfinished"
    UNKNOWN = "unknown"


class RecordedCall(NamedTuple):
    """A call that a rank made."""

    call: Call
    """Collectives have the record's numbers, from 0; messages are numbered in the order of the record."""
    progress: CallProgress


class LoggedCall(NamedTuple):
    """A call without its rank and its group's name."""

    group: int
    """The number of its group among the groups with recorded calls."""
    sequence: int
    signature: Signature
    progress: CallProgress
    peer: int | None = None
    """The other rank of a message, as a rank in the group."""

    @property
    def is_collective(self) -> bool:
        """Return True for a call that all members of the group have to make."""
        return self.signature.operation not in POINT_TO_POINT


class GroupCollectives(NamedTuple):
    """The collectives of one group in a call log. Restarted numbers mean a new group; only the last one counts."""

    first: int
    last: int
    begin: int
    """The index of the first step of the last group."""
    places: Mapping[int, int]
    """The index of the step with each number."""


@dataclass(frozen=True, eq=False)
class CallLog:
    """The calls of a rank, in order. Compared by identity, because ranks with equal calls share it."""

    steps: tuple[LoggedCall, ...]

    @cached_property
    def collectives_by_group(self) -> Mapping[int, GroupCollectives]:
        """The collectives of each group, by the group's number."""
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
        """The indices of sends and receives."""
        return tuple(index for index, step in enumerate(self.steps) if step.peer is not None)

    @cached_property
    def groups_and_peers(self) -> tuple[tuple[int, int], ...]:
        """Groups with the peers of messages in them."""
        steps = (self.steps[index] for index in self.message_indices)
        return tuple(dict.fromkeys((step.group, step.peer) for step in steps if step.peer is not None))

    @cached_property
    def progress_values(self) -> frozenset[CallProgress]:
        """All values of progress that occur."""
        return frozenset(step.progress for step in self.steps)

    @cached_property
    def unfinished_indices(self) -> tuple[int, ...]:
        """The indices of collectives that are not complete according to the record."""
        steps = enumerate(self.steps)
        return tuple(index for index, step in steps if step.progress is CallProgress.UNFINISHED and step.is_collective)


@dataclass(frozen=True)
class RankRecord:
    """The record of one rank."""

    rank: int
    source: str
    """The file it was read from."""
    form: str
    """The format, such as "flight recorder 2.10"."""
    call_log: CallLog
    groups: tuple[str, ...]
    """The names of the groups of the call log, by their numbers."""
    sites: tuple[tuple[Site, Site | None], ...] = ()
    """For each step its line, and the calling line in another file; () if the record has no lines."""
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The global ranks of the groups that the record describes, in group-rank order."""
    lost: int = 0
    """The number of calls before the first that the record still has."""
    not_recorded: int = 0
    """The number of calls that the recorder counted without recording them: messages, on gloo."""
    is_in_one_group: bool = False
    """True if the record shows that the rank is in no group but the default one."""
    lacks: tuple[str, ...] = ()
    """Details that this format lacks, so that they are not compared: "reduction", "root", "splits"."""
    is_known: bool = True
    """False for an unknown version, which was read like the known one."""
    is_cut: bool = False
    """True if the file ends too early; the part before that was read."""

    @cached_property
    def calls(self) -> RecordedCalls:
        """Return the calls in the order in which the rank made them."""
        return RecordedCalls(self)

    @property
    def groups_and_global_peers(self) -> Iterator[tuple[str, int]]:
        """Yield groups with the global ranks of peers of messages in them."""
        return ((self.groups[group], self.global_rank(group, rank)) for group, rank in self.call_log.groups_and_peers)

    def global_rank(self, group: int, rank: int) -> int:
        """Return a rank of a group as a global one; unchanged if the members are unknown."""
        members = self.members.get(self.groups[group], ())
        return members[rank] if 0 <= rank < len(members) else rank


class RecordedCalls:
    """The calls of a record. Each is made when it is first used, and kept."""

    def __init__(self, record: RankRecord) -> None:
        self._record = record
        self._made: dict[int, RecordedCall] = {}
        self._places: dict[int, int] = {}
        """The index of each call that was made, by its identity: a ring may have two equal calls."""

    def index_of(self, call: Call) -> int:
        """Return the index of a call that was returned before."""
        return self._places[id(call)]

    def __len__(self) -> int:
        return len(self._record.call_log.steps)

    def __iter__(self) -> Iterator[RecordedCall]:
        return map(self.__getitem__, range(len(self)))

    def last_calls(self, count: int) -> Iterator[RecordedCall]:
        """Return the last calls, so many at most."""
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
        call = Call(
            record.rank, record.groups[step.group], step.sequence, step.signature, site, peer=peer, caller=caller
        )
        return RecordedCall(call, step.progress)


def number_names(names: Iterable[str]) -> dict[str, int]:
    """Return names with their numbers, in order of appearance."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}
