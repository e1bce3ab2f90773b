"""Extracts, from a simulated run, what recorders of its ranks would have noted: each call, and how far it came."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ddpsim.simulator.calls import Call, channel_of_message, is_other_half
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.operations import CREATING
from ddpsim.simulator.records.rank_record import DEFAULT

REFUSED = "refused"
"""Texts of events for matched calls whose data could not be exchanged."""


class NotedCall(NamedTuple):
    """A call of a rank, as a recorder notes it. Recorders do not note or count group creations."""

    call: Call
    """The call, numbered within its group from 0; a receive from any source has the one it took from, if any."""
    is_complete: bool
    time: float
    """When the call was issued, in virtual seconds."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """The calls of all ranks of a run."""

    world_size: int
    ranks: tuple[tuple[NotedCall, ...], ...]
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """For each group, the global ranks of its members, in group-rank order."""


def make_run_log(trace: Iterable[Event], world_size: int) -> RunLog:
    """Return the log of a run with this number of ranks."""
    return _RunLogBuilder(world_size).read_trace(trace)


class _RunLogBuilder:
    def __init__(self, world_size: int) -> None:
        self._size = world_size
        self._ranks: list[list[NotedCall]] = [[] for _ in range(world_size)]
        self._members: dict[str, tuple[int, ...]] = {DEFAULT: tuple(range(world_size))}
        self._created: Counter[tuple[str, int]] = Counter()
        self._places: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """For each collective, its calls, each as a rank and the call's index in that rank's log."""
        self._halves: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        """For each group, receiver and tag, unmatched sends and receives, each as a rank and the call's index."""

    def read_trace(self, trace: Iterable[Event]) -> RunLog:
        """Return the log of all calls in a trace."""
        for event in trace:
            call = event.call
            if call is None:
                continue
            if call.operation in CREATING:
                if event.kind is EventKind.ISSUE:
                    self._note_group_creation(call)
            elif event.kind is EventKind.ISSUE:
                self._note_call(event, call)
            elif event.kind is EventKind.MATCH and event.text != REFUSED:
                self._note_match(call, event.text)
        for rank, noted in enumerate(self._ranks):
            for each in noted:
                members = self._members.setdefault(each.call.group, (rank,))
                if rank not in members:
                    self._members[each.call.group] = (*members, rank)
        return RunLog(self._size, tuple(map(tuple, self._ranks)), self._members)

    def _note_group_creation(self, call: Call) -> None:
        self._created[call.group, call.rank] += 1
        if call.signature.members is not None:
            self._members.setdefault(call.group, call.signature.members)

    def _note_call(self, event: Event, call: Call) -> None:
        place = call.rank, len(self._ranks[call.rank])
        if call.is_point_to_point:
            self._halves.setdefault(channel_of_message(call), []).append(place)
        else:
            self._places.setdefault((call.group, call.sequence), []).append(place)
            call = call._replace(sequence=call.sequence - self._created[call.group, call.rank])
        self._ranks[call.rank].append(NotedCall(call, False, event.time))

    def _note_match(self, call: Call, text: str) -> None:
        if not call.is_point_to_point:
            for place in self._places.get((call.group, call.sequence), ()):
                self._mark_call_complete(place)
            return
        halves = self._halves.get(channel_of_message(call), [])
        own = next((place for place in halves if self._call_at(place) == call), None)
        other = next((place for place in halves if is_other_half(self._call_at(place), call, text)), None)
        if own is not None and other is not None:
            halves.remove(own)
            halves.remove(other)
            self._mark_call_complete(own, peer=other[0])
            self._mark_call_complete(other, peer=own[0])

    def _call_at(self, place: tuple[int, int]) -> Call:
        return self._ranks[place[0]][place[1]].call

    def _mark_call_complete(self, place: tuple[int, int], peer: int | None = None) -> None:
        rank, index = place
        noted = self._ranks[rank][index]
        call = noted.call if peer is None else noted.call._replace(peer=peer)
        self._ranks[rank][index] = NotedCall(call, True, noted.time)
