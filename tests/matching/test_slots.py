"""The calls that create a group meet by the members they name, whatever the order of arrival."""

import itertools

from ddpsim.simulator.calls import NOWHERE, Call, Signature
from ddpsim.simulator.matching.slots import PendingCollectives


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
