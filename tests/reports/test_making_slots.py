"""Where the calls of a document meet: collectives by group and sequence, messages with the receives that take them."""

import pytest
import torch
import torch.distributed as dist

from ddpsim import simulate
from ddpsim.reports.making.result import document_of
from ddpsim.simulator.choices import Schedule, Who
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.policies.replay import Replay
from tests.reports.examples import CYCLE, MISMATCH, MISSING, document, run_of


def calls_in(run, slot):
    """The calls of a slot: rank, operation and sequence of each."""
    found = []
    for issue in slot.issues:
        event = run.events[issue]
        assert event.kind is EventKind.ISSUE
        found.append((event.rank, run.calls[event.call].operation, run.calls[event.call].sequence))
    return found


def matched_by(run, slot):
    """Who came last."""
    event = run.events[slot.match]
    assert event.kind is EventKind.MATCH
    return event.rank


# --- slots of collectives ---------------------------------------------------------------------------------------------


def two_collectives(rank):
    dist.all_reduce(torch.ones(3))
    dist.barrier()


def test_collectives_meet_by_group_and_sequence():
    run = run_of(two_collectives, 3)
    assert [(slot.group, slot.sequence, slot.state, slot.missing) for slot in run.slots] == [
        ("default", 0, "matched", ()),
        ("default", 1, "matched", ()),
    ]
    for number, (slot, operation) in enumerate(zip(run.slots, ("all_reduce", "barrier"), strict=True)):
        assert sorted(calls_in(run, slot)) == [(rank, operation, number) for rank in range(3)]
        assert matched_by(run, slot) == calls_in(run, slot)[-1][0]
        assert list(slot.issues) == sorted(slot.issues)


def test_ranks_share_the_calls_that_are_the_same():
    run = run_of(two_collectives, 3)
    assert [(call.operation, call.signature, call.origin, call.peer) for call in run.calls] == [
        ("all_reduce", "SUM float32[3]", "", None),
        ("barrier", "", "", None),
    ]
    assert [event.call for event in run.events if event.kind is EventKind.ISSUE and event.rank == 1] == [0, 1]


def in_groups(rank):
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    for pair in pairs if rank == 1 else pairs[rank // 2 :: 2]:
        dist.barrier(pair)


def test_groups_have_slots_of_their_own():
    run = run_of(in_groups, 3)
    assert {(slot.group, slot.sequence): len(slot.issues) for slot in run.slots} == {
        ("1", 0): 2,  # to make a group is its first call
        ("2", 0): 2,
        ("1", 1): 2,
        ("2", 1): 2,
    }
    assert all(slot.state == "matched" for slot in run.slots)


def test_the_open_slot_says_who_is_missing():
    run = document(MISSING).runs[0]
    *others, last = run.slots
    assert [slot.state for slot in others] == ["matched"] * 9
    assert (last.state, last.match, last.missing, last.any_suffices) == ("open", None, (1,), False)
    assert sorted(rank for rank, _, _ in calls_in(run, last)) == [0, 2, 3]
    assert run.findings[0].slots == (9,)
    assert all(waiting.slots == (9,) for waiting in run.waiting)


def test_where_all_came_nothing_is_open():
    run = document("uneven-inputs-without-join-repaired").runs[0]
    assert {slot.state for slot in run.slots} == {"matched"}
    assert run.waiting == ()
    assert run.findings == ()


def test_the_slot_whose_calls_differ_is_mismatched():
    run = document(MISMATCH).runs[0]
    (slot,) = run.slots
    assert (slot.state, slot.match) == ("mismatched", None)
    assert sorted(calls_in(run, slot)) == [
        (0, "all_reduce", 0),
        (1, "broadcast", 0),
        (2, "all_reduce", 0),
        (3, "all_reduce", 0),
    ]
    assert run.findings[0].slots == (0,)
    # Its repaired twin meets.
    assert {slot.state for slot in document(f"{MISMATCH}-repaired").runs[0].slots} == {"matched"}


# --- slots of messages ------------------------------------------------------------------------------------------------


def sends_three(rank):
    received = torch.zeros(1)
    if rank == 0:
        for value in (1.0, 2.0):
            dist.isend(torch.full((1,), value), 1).is_completed()
        dist.send(torch.full((1,), 3.0), 1, tag=5)
        return None
    work = dist.irecv(received.clone(), 0, tag=5)
    found = []
    for _ in range(2):
        dist.recv(received, 0)
        found.append(float(received))
    work.wait()
    return found


@pytest.mark.parametrize("first", [0, 1])
def test_messages_meet_in_order_by_tag_whoever_comes_first(first):
    result = simulate(sends_three, 2, policy=Replay(Schedule((first,))))
    assert result.returns[1] == [1.0, 2.0]  # so this is the order in which they were taken
    run = document_of(result).runs[0]
    first_event = run.events[0]
    assert (first_event.kind, first_event.rank) == (EventKind.ISSUE, first)
    assert sorted(sorted(calls_in(run, slot)) for slot in run.slots) == [
        [(0, "send", 0), (1, "recv", 1)],
        [(0, "send", 1), (1, "recv", 2)],
        [(0, "send", 2), (1, "recv", 0)],  # of tag 5
    ]
    assert [slot.state for slot in run.slots] == ["matched"] * 3
    for slot in run.slots:
        assert list(slot.issues) == sorted(slot.issues)  # in order of arrival


def takes_any(rank, senders):
    received = torch.zeros(1)
    if rank:
        dist.send(torch.full((1,), float(rank)), 0)
        return None
    found = []
    for _ in range(senders):
        dist.recv(received)
        found.append(int(received))
    return found


def test_a_receive_from_any_source_meets_the_message_that_it_took():
    orders = set()
    for seed in range(12):
        result = simulate(takes_any, 4, args=(3,), policy="random", seed=seed)
        taken = tuple(result.returns[0])  # whose each receive took, by the data
        run = document_of(result).runs[0]
        by_receive = {}
        for slot in run.slots:
            (sender, _, _), (_, _, number) = sorted(calls_in(run, slot), key=lambda call: call[1] == "recv")
            by_receive[number] = sender
        assert tuple(by_receive[number] for number in range(3)) == taken
        assert {
            run.calls[event.call].peer for event in run.events if event.kind is EventKind.ISSUE and not event.rank
        } == {-1}
        orders.add(taken)
    assert len(orders) >= 4  # of 6 orders: the schedules differ in what they show


def both_ways(rank):
    """Each sends, then receives: two messages with one sequence, in the two directions."""
    work = dist.isend(torch.full((1,), float(rank)), 1 - rank)
    dist.recv(torch.zeros(1), 1 - rank)
    work.wait()


def test_messages_in_the_two_directions_are_told_apart():
    run = run_of(both_ways, 2)
    assert sorted(sorted((rank, operation) for rank, operation, _ in calls_in(run, slot)) for slot in run.slots) == [
        [(0, "recv"), (1, "send")],
        [(0, "send"), (1, "recv")],
    ]


def test_each_message_that_nobody_takes_has_a_slot_of_its_own():
    run = document(CYCLE).runs[0]
    assert [(calls_in(run, slot), slot.state, slot.missing) for slot in run.slots] == [
        ([(rank, "send", 0)], "open", ((rank + 1) % 4,)) for rank in range(4)
    ]
    assert [each.slots for each in run.waiting] == [(0,), (1,), (2,), (3,)]


def waits_for_any(rank):
    if rank == 0:
        dist.recv(torch.zeros(1))


def test_a_receive_from_any_source_lacks_all_and_one_is_enough():
    run = run_of(waits_for_any, 3)
    (slot,) = run.slots
    assert (slot.state, slot.missing, slot.any_suffices) == ("open", (1, 2), True)
    (waiting,) = run.waiting
    assert (waiting.who, waiting.slots, waiting.any_suffices) == (Who(0), (0,), True)


def waits_for_either(rank):
    """Rank 0 waits for one of two messages and, in a group of its own, for one of two collectives."""
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 2])]
    if rank:
        return
    works = [dist.irecv(torch.zeros(1), 1), dist.irecv(torch.zeros(1), 2)]
    works += [dist.barrier(group=pair, async_op=True) for pair in pairs]
    torch.futures.collect_all([work.get_future() for work in works]).wait()


def test_of_a_wait_for_one_of_several_calls_each_lacks_its_own():
    run = run_of(waits_for_either, 4)
    (waiting,) = run.waiting
    assert waiting.any_suffices
    assert [(run.slots[index].missing, run.slots[index].any_suffices) for index in waiting.slots] == [
        ((1,), False),
        ((2,), False),
        ((1,), False),
        ((2,), False),
    ]
