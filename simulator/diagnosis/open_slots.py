"""What is open when nobody can go on: the calls that wait for others, and what does not fit among them."""

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
    """Where waiting calls meet: slots first, then messages."""
    collectives = [OpenSlot(tuple(slot.calls.values()), slot.missing) for slot in slots.open_slots()]
    return (*collectives, *(_half_message(call, slots) for call in messages.open_calls()))


def _half_message(call: Call, slots: SlotTable) -> OpenSlot:
    assert call.peer is not None
    if call.peer != ANY_SOURCE:
        return OpenSlot((call,), (call.peer,))
    others = tuple(rank for rank in slots.members(call.group) if rank != call.rank)
    return OpenSlot((call,), others, any_suffices=True)


def early_mismatches(slots: SlotTable, step: int, issued: Sequence[Call]) -> Iterator[tuple[list[Call], Finding]]:
    """Calls that do not agree although members are still missing, each with its finding.

    Splits are left out: whether they fit shows only once everybody is there.
    """
    for slot in slots.open_slots():
        calls = list(slot.calls.values())
        code = disagreement(calls) if len(calls) > 1 else None
        if code is not None and code is not Code.MISMATCH_SPLITS:
            yield calls, mismatch(calls, code, step, complete=False, issued=issued)
