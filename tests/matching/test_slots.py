"""Collectives meet by group and sequence, whatever the order of arrival."""

import itertools

from ddpsim.simulator.calls import NOWHERE, Call, Signature
from ddpsim.simulator.matching.slots import PendingCollectives


def call(rank, sequence=0, group="g"):
    return Call(rank, group, sequence, Signature("barrier"), NOWHERE)


def test_a_slot_is_full_once_every_member_is_there_in_any_order():
    for order in itertools.permutations((1, 3, 4)):
        table = PendingCollectives()
        table.declare_group("g", (1, 3, 4))
        slots = [table.add_call(call(rank)) for rank in order]
        assert slots[0] is slots[1] is slots[2]
        assert slots[-1].is_full
        assert list(table.list_pending()) == []


def test_missing_and_arrived_are_told():
    table = PendingCollectives()
    table.declare_group("g", (0, 1, 2))
    slot = table.add_call(call(2))
    assert (slot.arrived_ranks, slot.missing, slot.is_full) == ((2,), (0, 1), False)


def test_sequences_and_groups_are_kept_apart():
    table = PendingCollectives()
    table.declare_group("g", (0, 1))
    table.declare_group("h", (0, 1))
    slots = {id(table.add_call(c)) for c in (call(0), call(1, sequence=1), call(0, group="h"))}
    assert len(slots) == 3
    assert [(next(iter(slot.calls.values())).group, slot.sequence) for slot in table.list_pending()] == [
        ("g", 0),
        ("g", 1),
        ("h", 0),
    ]


def test_the_first_declaration_of_a_group_stands():
    table = PendingCollectives()
    table.declare_group("g", (0, 1))
    table.declare_group("g", (0, 1, 2))
    assert table.members_of("g") == (0, 1)


def creation(rank, *members):
    return Call(rank, "g", 0, Signature("new_group", members=members), NOWHERE)


def test_who_creates_a_group_waits_for_everybody_it_names():
    table = PendingCollectives()
    slot = table.add_call(creation(1, 1, 3))
    assert (slot.members, slot.missing, slot.is_full) == ((1, 3), (3,), False)
    assert table.add_call(creation(3, 1, 3)).is_full
    assert list(table.list_pending()) == []


def test_a_rank_outside_a_new_group_neither_waits_nor_is_waited_for():
    for order in itertools.permutations((0, 1, 2)):
        table = PendingCollectives()
        for rank in order:
            slot = table.add_call(creation(rank, 0, 2))
        assert slot.is_full
        assert list(slot.calls) == [rank for rank in order if rank != 1]


def test_a_rank_that_takes_itself_for_no_member_has_arrived_where_others_name_it():
    for order in itertools.permutations([creation(0, 0, 1), creation(1, 2, 3)]):
        table = PendingCollectives()
        slot = [table.add_call(call) for call in order][-1]
        assert slot.is_full
        assert sorted(slot.calls) == [0, 1]


def test_different_lists_of_members_make_all_of_them_expected():
    table = PendingCollectives()
    table.add_call(creation(0, 0, 1))
    slot = table.add_call(creation(1, 1, 2))
    assert (slot.members, slot.missing) == ((0, 1, 2), (2,))


def test_a_latecomer_with_other_members_finds_the_slot_full():
    table = PendingCollectives()
    table.add_call(creation(0, 0, 1))
    table.add_call(creation(1, 0, 1))
    slot = table.add_call(creation(2, 2, 3))
    assert slot.is_full
    assert slot.members == (0, 1, 2)
