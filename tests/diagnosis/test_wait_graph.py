"""The wait-for graph and its readings, on snapshots written down by hand."""

import time

import networkx as nx
import pytest

from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, Call, Signature
from ddpsim.simulator.diagnosis import wait_graph
from ddpsim.simulator.diagnosis.deadlock import deadlocks
from ddpsim.simulator.diagnosis.snapshot import OpenSlot, RankSnapshot, RankState, Snapshot, ThreadSnapshot
from ddpsim.simulator.diagnosis.wait_graph import waiting
from ddpsim.simulator.waits import CallWait, LockWait, StoreWait, ThreadWait

W, RETURNED, RAISED = RankState.WAITING, RankState.RETURNED, RankState.RAISED


def collective(rank, group="g", sequence=0):
    return Call(rank, group, sequence, Signature("all_reduce"), NOWHERE)


def message(operation, rank, peer):
    return Call(rank, "g", 0, Signature(operation), NOWHERE, peer=peer)


def snapshot(waits, slots, standings=None):
    standings = standings or {}
    ranks = [
        RankSnapshot(rank, standings.get(rank, W), CallWait((call,)) if call else None)
        for rank, call in enumerate(waits)
    ]
    return Snapshot(tuple(ranks), tuple(slots))


def one(readings):
    (reading,) = readings
    return reading.code, reading.culprits, reading.victims, reading.cycle


def test_a_returned_rank_is_missing():
    calls = [collective(0), collective(1)]
    found = wait_graph.read(snapshot([*calls, None], [OpenSlot(tuple(calls), (2,))], {2: RETURNED}))
    assert one(found) == ("deadlock.missing_rank", (2,), (0, 1), ())


def test_a_rank_that_raised_is_dead():
    calls = [collective(0), collective(1)]
    found = wait_graph.read(snapshot([*calls, None], [OpenSlot(tuple(calls), (2,))], {2: RAISED}))
    assert one(found) == ("deadlock.dead_rank", (2,), (0, 1), ())


def test_two_groups_in_opposite_order_are_a_cycle():
    a, b = collective(0, "a"), collective(1, "b")
    found = wait_graph.read(snapshot([a, b], [OpenSlot((a,), (1,)), OpenSlot((b,), (0,))]))
    assert one(found) == ("deadlock.cycle", (0, 1), (0, 1), (0, 1))


@pytest.mark.parametrize("operation", ["send", "recv"])
def test_a_ring_of_messages_is_a_cycle_of_all(operation):
    calls = [message(operation, rank, (rank + 1) % 5) for rank in range(5)]
    found = wait_graph.read(snapshot(calls, [OpenSlot((call,), (call.peer,)) for call in calls]))
    assert one(found) == ("deadlock.cycle", (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4))


def test_the_shortest_cycle_is_shown_and_the_others_are_victims():
    # 0 waits for 1; 1 waits for 0 and for 2; 2 waits for 0 (a longer way round).
    calls = [message("recv", 0, 1), collective(1), message("recv", 2, 0)]
    slots = [OpenSlot((calls[0],), (1,)), OpenSlot((calls[1],), (0, 2)), OpenSlot((calls[2],), (0,))]
    found = wait_graph.read(snapshot(calls, slots))
    assert one(found) == ("deadlock.cycle", (0, 1), (0, 1, 2), (0, 1))


def test_a_receive_from_any_source_waits_for_one_of_many():
    call = message("recv", 0, ANY_SOURCE)
    told = snapshot([call, None, None], [OpenSlot((call,), (1, 2), any_suffices=True)], {1: RETURNED, 2: RETURNED})
    graph = wait_graph.build(told)
    assert graph.nodes["slot", 0]["any_suffices"]
    assert one(wait_graph.read(told)) == ("deadlock.missing_rank", (1, 2), (0,), ())


def test_parts_that_do_not_touch_are_read_apart():
    a, b, c = message("send", 0, 1), message("send", 1, 0), collective(2)
    slots = [OpenSlot((a,), (1,)), OpenSlot((b,), (0,)), OpenSlot((c,), (3,))]
    readings = wait_graph.read(snapshot([a, b, c, None], slots, {3: RETURNED}))
    assert [(r.code, r.culprits) for r in readings] == [("deadlock.cycle", (0, 1)), ("deadlock.missing_rank", (3,))]


def test_ranks_that_are_done_and_not_needed_are_not_named():
    a, b = message("send", 0, 1), message("send", 1, 0)
    slots = [OpenSlot((a,), (1,)), OpenSlot((b,), (0,))]
    (reading,) = wait_graph.read(snapshot([a, b, None], slots, {2: RETURNED}))
    assert reading.victims == (0, 1)


def test_a_chain_ends_in_the_rank_that_is_really_missing():
    # 0 waits for 1, 1 waits for 2, and 2 has returned.
    calls = [message("recv", 0, 1), message("recv", 1, 2)]
    slots = [OpenSlot((calls[0],), (1,)), OpenSlot((calls[1],), (2,))]
    found = wait_graph.read(snapshot([*calls, None], slots, {2: RETURNED}))
    assert one(found) == ("deadlock.missing_rank", (2,), (0, 1), ())


def test_a_store_key_that_nobody_sets():
    ranks = (RankSnapshot(0, W, StoreWait(("key",))), RankSnapshot(1, RETURNED))
    assert one(wait_graph.read(Snapshot(ranks, ()))) == ("deadlock.missing_rank", (0,), (0,), ())


def test_two_ranks_that_wait_for_each_others_keys_are_a_cycle():
    ranks = (RankSnapshot(0, W, StoreWait(("b",))), RankSnapshot(1, W, StoreWait(("a",))))
    assert one(wait_graph.read(Snapshot(ranks, ()))) == ("deadlock.cycle", (0, 1), (0, 1), (0, 1))


def test_half_the_world_waiting_for_the_other_half_has_a_small_graph():
    size = 1024
    a = [collective(rank, "a") for rank in range(size // 2)]
    b = [collective(rank, "b") for rank in range(size // 2, size)]
    everybody = snapshot([*a, *b], [OpenSlot(tuple(a), tuple(range(512, 1024))), OpenSlot(tuple(b), tuple(range(512)))])
    graph = wait_graph.build(everybody)
    assert graph.number_of_edges() == 2 * size
    assert nx.is_strongly_connected(graph)
    assert one(wait_graph.read(everybody))[3] == (0, 512)


def all_of(readings):
    return [(reading.code.value, reading.culprits, reading.victims) for reading in readings]


def test_a_dead_rank_and_a_cycle_are_both_told():
    # 0 and 1 receive from each other, 2 is in a barrier of all, 3 has raised.
    calls = [message("recv", 0, 1), message("recv", 1, 0), collective(2)]
    slots = [OpenSlot((calls[0],), (1,)), OpenSlot((calls[1],), (0,)), OpenSlot((calls[2],), (0, 1, 3))]
    found = wait_graph.read(snapshot([*calls, None], slots, {3: RAISED}))
    assert all_of(found) == [("deadlock.cycle", (0, 1), (0, 1, 2)), ("deadlock.dead_rank", (3,), (2,))]


@pytest.mark.parametrize(("state", "code"), [(RETURNED, "deadlock.missing_rank"), (RAISED, "deadlock.dead_rank")])
def test_a_cycle_that_waits_for_another_rank_too_is_still_one(state, code):
    a, b = collective(0, "a"), collective(1, "b")
    slots = [OpenSlot((a,), (1, 2)), OpenSlot((b,), (0, 2))]
    found = wait_graph.read(snapshot([a, b, None], slots, {2: state}))
    assert all_of(found) == [("deadlock.cycle", (0, 1), (0, 1)), (code, (2,), (0, 1))]


def test_a_receive_from_any_source_closes_no_cycle_that_another_source_could_open():
    calls = [message("recv", 0, ANY_SOURCE), message("recv", 1, 0)]
    slots = [OpenSlot((calls[0],), (1, 2), any_suffices=True), OpenSlot((calls[1],), (0,))]
    found = wait_graph.read(snapshot([*calls, None], slots, {2: RETURNED}))
    assert all_of(found) == [("deadlock.missing_rank", (2,), (0, 1))]
    closed = [OpenSlot((calls[0],), (1,), any_suffices=True), slots[1]]
    assert all_of(wait_graph.read(snapshot(calls, closed))) == [("deadlock.cycle", (0, 1), (0, 1))]


def test_the_text_says_that_any_source_would_do():
    call = message("recv", 0, ANY_SOURCE)
    slot = OpenSlot((call,), (1, 2), any_suffices=True)
    (finding,) = deadlocks(snapshot([call, None, None], [slot], {1: RETURNED, 2: RETURNED}))
    assert finding.summary == "rank 0 waits for any of ranks 1, 2, which returned"
    call = collective(0)
    (finding,) = deadlocks(snapshot([call, None, None], [OpenSlot((call,), (1, 2))], {1: RETURNED, 2: RETURNED}))
    assert finding.summary == "rank 0 waits for ranks 1, 2, which returned"


def test_a_store_key_is_apart_from_what_others_wait_for():
    send = message("send", 1, 2)
    ranks = (
        RankSnapshot(0, W, StoreWait(("key",))),
        RankSnapshot(1, W, CallWait((send,))),
        RankSnapshot(2, RETURNED),
        RankSnapshot(3, W, StoreWait(("key",))),
    )
    told = Snapshot(ranks, (OpenSlot((send,), (2,)),))
    assert all_of(wait_graph.read(told)) == [
        ("deadlock.missing_rank", (0, 3), (0, 3)),
        ("deadlock.missing_rank", (2,), (1,)),
    ]
    key, message_text = deadlocks(told)
    assert "nobody who still runs will set the key" in key.text
    assert "returned without the matching recv" in message_text.text


@pytest.mark.parametrize("returned", [1, 3000])
def test_the_text_of_a_large_world_takes_time_near_linear_in_its_ranks(returned):
    size = 6000
    calls = [collective(rank) for rank in range(returned, size)]
    slot = OpenSlot(tuple(calls), tuple(range(returned)))
    start = time.process_time()
    (finding,) = deadlocks(snapshot([None] * returned + calls, [slot], dict.fromkeys(range(returned), RETURNED)))
    assert time.process_time() - start < 2
    assert len(finding.ranks) == returned


# --- who waits for whom, as values ------------------------------------------------------------------------------------


def edges(snapshot):
    return [(each.who.rank, [who.rank for who in each.waits_for], each.any_suffices) for each in waiting(snapshot)]


def test_ranks_wait_for_those_that_their_meeting_misses():
    calls = [collective(0), collective(1)]
    assert edges(snapshot([*calls, None], [OpenSlot(tuple(calls), (2,))], {2: RETURNED})) == [
        (0, [2], False),
        (1, [2], False),
    ]


def test_a_receive_from_any_source_needs_one_of_all():
    call = message("recv", 1, ANY_SOURCE)
    slot = OpenSlot((call,), (0, 2), any_suffices=True)
    assert edges(snapshot([None, call, None], [slot], {0: RETURNED, 2: RETURNED})) == [(1, [0, 2], True)]


def test_half_of_the_ranks_that_wait_for_the_other_half_share_what_is_missing():
    calls = [collective(rank) for rank in range(512)]
    missing = tuple(range(512, 1024))
    all_ranks = snapshot([*calls, *[None] * 512], [OpenSlot(tuple(calls), missing)], dict.fromkeys(missing, RETURNED))
    found = waiting(all_ranks)
    assert len(found) == 512
    assert len({id(each.waits_for) for each in found}) == 1
    assert [who.rank for who in found[0].waits_for] == list(missing)


def test_a_store_key_is_nobody_in_particular():
    ranks = (RankSnapshot(0, W, StoreWait(("a",))), RankSnapshot(1, RETURNED))
    assert edges(Snapshot(ranks, ())) == [(0, [], True)]


def test_threads_wait_by_name():
    lock = ("lock", 0, 0)
    threads = (ThreadSnapshot(2, "reader", LockWait(lock, holder=0)),)
    ranks = (RankSnapshot(0, W, ThreadWait(2, "reader"), threads=threads), RankSnapshot(1, RETURNED))
    found = waiting(Snapshot(ranks, ()))
    assert [(str(each.who), [str(who) for who in each.waits_for]) for each in found] == [
        ("rank 0", ['rank 0, thread "reader"']),
        ('rank 0, thread "reader"', ["rank 0"]),
    ]
