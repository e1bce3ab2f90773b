"""Finds which calls of a trace were matched with each other, from its events.

Calls of a collective match by group and sequence. A send matches the oldest open receive that fits, by the rule of
simulator/matching/slots.py. If a receive accepts any source, the event names the sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpsim.reports.document import MatchedCalls, SlotState
from ddpsim.simulator.calls import ANY_SOURCE, Call, channel_of_message, is_other_half
from ddpsim.simulator.events import Event, EventKind

Key = tuple[str, int, int, str]
"""Which call an event belongs to: group, sequence, rank and operation; a collective has rank -1 and operation ""."""


@dataclass(slots=True, eq=False)
class _GrowingSlot:
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


class MatchedCallCollector:
    """Collects the slots of a run (each: calls that match each other), event by event."""

    def __init__(self) -> None:
        self._by_key: dict[Key, _GrowingSlot] = {}
        self._unmatched_messages: dict[tuple[str, int, int], list[Call]] = {}
        """Sends and receives that have no partner yet, by group, receiver and tag."""
        self._numbers: dict[_GrowingSlot, int] = {}

    def process_event(self, index: int, event: Event) -> None:
        """Process an event; only events that issue or complete a call matter."""
        call = event.call
        if call is None:
            return
        if event.kind is EventKind.ISSUE:
            self._by_key.setdefault(_slot_key(call), _GrowingSlot(call.group, call.sequence)).issues.append(index)
            if call.is_point_to_point:
                self._unmatched_messages.setdefault(channel_of_message(call), []).append(call)
        elif event.kind is EventKind.MATCH:
            if call.is_point_to_point and not self._pair_messages(call, event.text):
                return
            if slot := self._by_key.get(_slot_key(call)):
                slot.match = index

    def number_slots(self) -> None:
        """Number the slots (rows of matching calls), after all events."""
        self._numbers = {slot: number for number, slot in enumerate(dict.fromkeys(self._by_key.values()))}

    def slots_of_calls(self, calls: Sequence[Call]) -> tuple[int, ...]:
        """Return the slots (rows of matching calls) of these calls, without repetition."""
        return tuple(self._numbers[slot] for slot in self._find_slots(calls))

    def mark_mismatched(self, calls: Sequence[Call]) -> None:
        """Record that calls that match each other have different arguments."""
        for slot in self._find_slots(calls):
            slot.is_mismatched = True

    def record_missing_ranks(self, call: Call, missing: tuple[int, ...]) -> None:
        """Record the ranks whose call is missing, for a call that a rank waits for."""
        for slot in self._find_slots([call]):
            slot.missing = missing
            slot.any_suffices |= call.peer == ANY_SOURCE

    def slot_rows(self) -> tuple[MatchedCalls, ...]:
        """Return the slots (rows of matching calls) as values of the document."""
        return tuple(
            MatchedCalls(
                each.group, each.sequence, tuple(each.issues), each.state, each.match, each.missing, each.any_suffices
            )
            for each in self._numbers
        )

    def _find_slots(self, calls: Sequence[Call]) -> dict[_GrowingSlot, None]:
        return {slot: None for call in calls if (slot := self._by_key.get(_slot_key(call)))}

    def _pair_messages(self, arrival: Call, text: str) -> bool:
        """Put the later call into the slot of its partner; return whether there is a partner."""
        halves = self._unmatched_messages.get(channel_of_message(arrival), [])
        partner = next((half for half in halves if is_other_half(half, arrival, text)), None)
        if partner is None or arrival not in halves:
            return False
        halves.remove(arrival)
        halves.remove(partner)
        own, self._by_key[_slot_key(arrival)] = self._by_key[_slot_key(arrival)], self._by_key[_slot_key(partner)]
        self._by_key[_slot_key(partner)].issues += own.issues
        return True


def _slot_key(call: Call) -> Key:
    if call.is_point_to_point:
        return call.group, call.sequence, call.rank, call.operation
    return call.group, call.sequence, -1, ""
