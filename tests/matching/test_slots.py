"""Collectives meet by group and sequence, whatever the order of arrival."""

import itertools

from simulator.calls import NOWHERE, Call, Signature
from simulator.matching.slots import SlotTable


def call(rank, sequence=0, group="g"):
    return Call(rank, group, sequence, Signature("barrier"), NOWHERE)


def test_a_slot_is_full_once_every_member_is_there_in_any_order():
    for order in itertools.permutations((1, 3, 4)):
        table = SlotTable()
        table.declare("g", (1, 3, 4))
        slots = [table.arrive(call(rank)) for rank in order]
        assert slots[0] is slots[1] is slots[2]
        assert slots[-1].is_full
        assert list(table.open_slots()) == []


def test_missing_and_arrived_are_told():
    table = SlotTable()
    table.declare("g", (0, 1, 2))
    slot = table.arrive(call(2))
    assert (slot.arrived, slot.missing, slot.is_full) == ((2,), (0, 1), False)


def test_sequences_and_groups_are_kept_apart():
    table = SlotTable()
    table.declare("g", (0, 1))
    table.declare("h", (0, 1))
    slots = {id(table.arrive(c)) for c in (call(0), call(1, sequence=1), call(0, group="h"))}
    assert len(slots) == 3
    assert [(slot.group, slot.sequence) for slot in table.open_slots()] == [("g", 0), ("g", 1), ("h", 0)]


def test_the_first_declaration_of_a_group_stands():
    table = SlotTable()
    table.declare("g", (0, 1))
    table.declare("g", (0, 1, 2))
    assert table.members("g") == (0, 1)
