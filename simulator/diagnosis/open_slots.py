"""The waiting calls at a deadlock, and disagreements between calls of slots that are not full yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenSlot
from ddpsim.simulator.diagnosis.mismatch import mismatch
from ddpsim.simulator.matching.agreement import disagreement
from ddpsim.simulator.matching.point_to_point import PointToPointTable
from ddpsim.simulator.matching.slots import SlotTable
from ddpsim.simulator.verdict import Code, Finding


def open_slots(slots: SlotTable, messages: PointToPointTable) -> tuple[OpenSlot, ...]:
    """Return the open slots: collectives first, then messages."""
    collectives = [OpenSlot(tuple(slot.calls.values()), slot.missing) for slot in slots.open_slots()]
    return (*collectives, *(_half_message(call, slots) for call in messages.open_calls()))


def _half_message(call: Call, slots: SlotTable) -> OpenSlot:
    assert call.peer is not None
    if call.peer != ANY_SOURCE:
        return OpenSlot((call,), (call.peer,))
    others = tuple(rank for rank in slots.members(call.group) if rank != call.rank)
    return OpenSlot((call,), others, any_suffices=True)


def early_mismatches(slots: SlotTable, step: int, issued: Sequence[Call]) -> Iterator[tuple[list[Call], Finding]]:
    """Yield the calls of open slots that do not agree, with their finding, although members are still missing.

    Splits are not compared: that needs the calls of all members.
    """
    for slot in slots.open_slots():
        calls = list(slot.calls.values())
        code = disagreement(calls) if len(calls) > 1 else None
        if code is not None and code is not Code.MISMATCH_SPLITS:
            yield calls, mismatch(calls, code, step, complete=False, issued=issued)
