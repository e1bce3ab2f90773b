"""Where the calls of a document meet: collectives by group and sequence, messages with the receives that take them."""

import pytest
import torch
import torch.distributed as dist

from ddpsim import simulate
from ddpsim.reports.making.result_document import document_of
from ddpsim.simulator.choices import RankOrThread, Schedule
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.policies.schedule_replay import ReplayPolicy
from tests.reports.examples import CYCLE, MISMATCH, MISSING, document, run_of


def calls_in(run, slot):
    """The calls of a slot by rank: rank, operation and sequence of each. They are there in order of arrival."""
    assert list(slot.issues) == sorted(slot.issues)
    events = [run.events[issue] for issue in slot.issues]
    assert {event.kind for event in events} == {EventKind.ISSUE}
    if slot.match is not None:
        assert run.events[slot.match][:2] == (EventKind.MATCH, events[-1].rank)  # who came last
    return sorted((event.rank, run.calls[event.call].operation, run.calls[event.call].sequence) for event in events)


def met(run):
    """All slots: what became of each, whom it lacks, and its calls."""
    return [(slot.state, slot.missing, calls_in(run, slot)) for slot in run.slots]


def two_collectives(rank):
    dist.all_reduce(torch.ones(3))
    dist.barrier()


def test_collectives_meet_by_group_and_sequence_and_ranks_share_the_calls_that_are_the_same():
    run = run_of(two_collectives, 3)
    operations = list(enumerate(("all_reduce", "barrier")))
    assert met(run) == [("matched", (), [(rank, name, number) for rank in range(3)]) for number, name in operations]
    assert [(slot.group, slot.sequence) for slot in run.slots] == [("default", 0), ("default", 1)]
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
    found = {(slot.group, slot.sequence): len(slot.issues) for slot in run.slots}
    assert found == {("1", 0): 2, ("2", 0): 2, ("1", 1): 2, ("2", 1): 2}  # to make a group is its first call
    assert {slot.state for slot in run.slots} == {"matched"}


def test_the_open_slot_says_who_is_missing():
    run = document(MISSING).runs[0]
    *others, last = met(run)
    assert [state for state, _, _ in others] == ["matched"] * 9
    assert last == ("open", (1,), [(rank, "all_reduce", 9) for rank in (0, 2, 3)])
    assert (run.slots[9].match, run.slots[9].any_suffices) == (None, False)
    assert {run.findings[0].slots, *(waiting.slots for waiting in run.waiting)} == {(9,)}


def test_the_slot_whose_calls_differ_is_mismatched():
    run = document(MISMATCH).runs[0]
    calls = [(rank, "broadcast" if rank == 1 else "all_reduce", 0) for rank in range(4)]
    assert met(run) == [("mismatched", (), calls)]
    assert (run.slots[0].match, run.findings[0].slots) == (None, (0,))
    # Its repaired twin meets.
    assert {slot.state for slot in document(f"{MISMATCH}-repaired").runs[0].slots} == {"matched"}


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
    result = simulate(sends_three, 2, policy=ReplayPolicy(Schedule((first,))))
    assert result.returns[1] == [1.0, 2.0]  # so this is the order in which they were taken
    run = document_of(result).runs[0]
    assert run.events[0][:2] == (EventKind.ISSUE, first)
    pairs = ((0, 1), (1, 2), (2, 0))  # the last is of tag 5
    assert sorted(met(run)) == [("matched", (), [(0, "send", one), (1, "recv", other)]) for one, other in pairs]


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
        assert sorted(met(run)) == sorted(
            ("matched", (), [(0, "recv", number), (sender, "send", 0)]) for number, sender in enumerate(taken)
        )
        receipts = [run.calls[each.call] for each in run.events if each.kind is EventKind.ISSUE and each.rank == 0]
        assert {receipt.peer for receipt in receipts} == {-1}
        orders.add(taken)
    assert len(orders) >= 4  # of 6 orders: the schedules differ in what they show


def both_ways(rank):
    """Each sends, then receives: two messages with one sequence, in the two directions."""
    work = dist.isend(torch.full((1,), float(rank)), 1 - rank)
    dist.recv(torch.zeros(1), 1 - rank)
    work.wait()


def test_messages_in_the_two_directions_are_told_apart():
    found = sorted([(rank, operation) for rank, operation, _ in calls] for _, _, calls in met(run_of(both_ways, 2)))
    assert found == [[(0, "recv"), (1, "send")], [(0, "send"), (1, "recv")]]


def test_each_message_that_nobody_takes_has_a_slot_of_its_own():
    run = document(CYCLE).runs[0]
    assert met(run) == [("open", ((rank + 1) % 4,), [(rank, "send", 0)]) for rank in range(4)]
    assert [each.slots for each in run.waiting] == [(0,), (1,), (2,), (3,)]


def waits_for_any(rank):
    if rank == 0:
        dist.recv(torch.zeros(1))


def waits_for_either(rank):
    """Rank 0 waits for one of two collectives in each of two groups."""
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 2])]
    if rank:
        return
    works = [dist.all_reduce(torch.zeros(1), group=pair, async_op=True) for pair in pairs]
    works += [dist.barrier(group=pair, async_op=True) for pair in pairs]
    torch.futures.collect_all([work.get_future() for work in works]).wait()


@pytest.mark.parametrize(
    ("program", "lacks"),
    [(waits_for_any, [((1, 2), True)]), (waits_for_either, [((1,), False), ((2,), False)] * 2)],
)
def test_of_a_wait_for_one_of_several_each_call_lacks_its_own(program, lacks):
    run = run_of(program, 3)
    (waiting,) = run.waiting
    assert (waiting.who, waiting.any_suffices) == (RankOrThread(0), True)
    assert [(run.slots[index].missing, run.slots[index].any_suffices) for index in waiting.slots] == lacks
