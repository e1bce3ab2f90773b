"""Where the calls of a trace met, read from its events.

A collective's calls meet by group and sequence. A message meets the receive that takes it: of several open ones the
oldest that fits, as the simulator's matching has it (simulator/matching/point_to_point.py); whose message a receive
from any source took stands in the event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpsim.reports.document import Slot, SlotState
from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.events import Event, EventKind

Key = tuple[str, int, int, str]
"""Group, sequence, rank and operation; for a collective, rank -1 and no operation."""

_TAKEN = re.compile(r"from rank (\d+)")


@dataclass(slots=True)
class _Open:
    group: str
    sequence: int
    issues: list[int] = field(default_factory=list)
    match: int | None = None
    is_mismatched: bool = False
    missing: tuple[int, ...] = ()
    any_suffices: bool = False

    @property
    def state(self) -> SlotState:
        return "mismatched" if self.is_mismatched else "open" if self.match is None else "matched"


class Slots:
    """The slots of a run, filled event by event."""

    def __init__(self) -> None:
        self._slots: list[_Open] = []
        self._by_key: dict[Key, int] = {}
        self._halves: dict[tuple[str, int, int], list[tuple[int, Call]]] = {}
        """Messages and receives that have no partner yet, by group, receiver and tag, with their slots."""

    def take(self, index: int, event: Event) -> None:
        """Note an event, if it issues or completes a call."""
        call = event.call
        if call is None:
            return
        if event.kind is EventKind.ISSUE:
            self._issue(index, call)
        elif event.kind is EventKind.MATCH:
            slot = self._pair(call, event.text) if call.is_point_to_point else self._by_key.get(_key(call))
            if slot is not None:
                self._slots[slot].match = index

    def close(self) -> None:
        """Give the slots their numbers, once all events were taken: halves that went to their partners have none."""
        kept = [index for index, slot in enumerate(self._slots) if slot.issues]
        number = {index: new for new, index in enumerate(kept)}
        self._slots = [self._slots[index] for index in kept]
        self._by_key = {key: number[index] for key, index in self._by_key.items()}

    def of(self, calls: Sequence[Call]) -> tuple[int, ...]:
        """The slots of calls, each once."""
        found = (self._by_key.get(_key(call)) for call in calls)
        return tuple(dict.fromkeys(slot for slot in found if slot is not None))

    def differ(self, calls: Sequence[Call]) -> None:
        """Note that calls met and differ."""
        for slot in self.of(calls):
            self._slots[slot].is_mismatched = True

    def lack(self, call: Call, missing: tuple[int, ...]) -> None:
        """Note whom a call lacks that somebody waits for."""
        for slot in self.of([call]):
            self._slots[slot].missing = missing
            self._slots[slot].any_suffices |= call.peer == ANY_SOURCE

    def table(self) -> tuple[Slot, ...]:
        """The slots as values."""
        return tuple(
            Slot(each.group, each.sequence, tuple(each.issues), each.state, each.match, each.missing, each.any_suffices)
            for each in self._slots
        )

    def _issue(self, index: int, call: Call) -> None:
        slot = self._by_key.get(_key(call))
        if slot is None:
            slot = self._by_key[_key(call)] = len(self._slots)
            self._slots.append(_Open(call.group, call.sequence))
        self._slots[slot].issues.append(index)
        if call.is_point_to_point:
            self._halves.setdefault(_channel(call), []).append((slot, call))

    def _pair(self, arrival: Call, text: str) -> int | None:
        """Put the call that arrived last into the slot of its partner, which becomes that of both."""
        halves = self._halves.get(_channel(arrival), [])
        own = next((half for half in halves if half[1] is arrival), None)
        partner = next((half for half in halves if _fits(half[1], arrival, text)), None)
        if own is None or partner is None:
            return None
        halves.remove(own)
        halves.remove(partner)
        self._slots[partner[0]].issues += self._slots[own[0]].issues
        self._slots[own[0]].issues.clear()
        self._by_key[_key(arrival)] = partner[0]
        return partner[0]


def _key(call: Call) -> Key:
    if call.is_point_to_point:
        return call.group, call.sequence, call.rank, call.operation
    return call.group, call.sequence, -1, ""


def _channel(call: Call) -> tuple[str, int, int]:
    receiver = call.rank if call.operation == "recv" else call.peer
    assert receiver is not None
    return call.group, receiver, call.tag


def _fits(other: Call, arrival: Call, text: str) -> bool:
    if other.operation == arrival.operation:
        return False
    if arrival.operation == "send":
        return other.peer in (ANY_SOURCE, arrival.rank)
    taken = _TAKEN.fullmatch(text)
    return other.rank == (int(taken[1]) if taken else arrival.peer)
