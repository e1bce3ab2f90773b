"""The wait-for graph and its readings, on snapshots written down by hand."""

import time

import pytest

from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, Call, Signature
from ddpsim.simulator.diagnosis.deadlock import find_deadlocks
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenCalls, RankSnapshot, RankState, Snapshot, ThreadSnapshot
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.waits import CallWait, LockWait, StoreWait, ThreadWait
from tests.kit.rows import rows

W, RETURNED, RAISED = RankState.WAITING, RankState.RETURNED, RankState.RAISED
CYCLE, MISSING, DEAD = "deadlock.cycle", "deadlock.missing_rank", "deadlock.dead_rank"
KEY, OTHER_KEY = StoreWait(("key",)), StoreWait(("other",))


def graph_of(ranks, slots=()):
    """Of each rank the call or store key that it waits for, or how it ended; of each slot its calls and who misses."""
    snapshots = [
        RankSnapshot(rank, each)
        if isinstance(each, RankState)
        else RankSnapshot(rank, W, CallWait((each,)) if isinstance(each, Call) else each)
        for rank, each in enumerate(ranks)
    ]
    return WaitGraph(Snapshot(tuple(snapshots), tuple(OpenCalls(tuple(calls), *rest) for calls, *rest in slots)))


def collective(rank, group="g"):
    return Call(rank, group, 0, Signature("all_reduce"), NOWHERE)


def message(operation, rank, peer):
    return Call(rank, "g", 0, Signature(operation), NOWHERE, peer=peer)


C0, C1, C2 = map(collective, range(3))
B1 = collective(1, "b")
SEND_01, SEND_10, SEND_12 = message("send", 0, 1), message("send", 1, 0), message("send", 1, 2)
RECV_01, RECV_10, RECV_12, RECV_20 = (message("recv", *ranks) for ranks in ((0, 1), (1, 0), (1, 2), (2, 0)))
ANY = message("recv", 0, ANY_SOURCE)
OTHERS = [([SEND_01], (1,)), ([SEND_10], (0,))]


def ring(operation):
    calls = [message(operation, rank, (rank + 1) % 5) for rank in range(5)]
    return calls, [([call], (call.peer,)) for call in calls], [(CYCLE, (0, 1, 2, 3, 4), (0, 1, 2, 3, 4))]


READINGS = {
    "a rank that returned is missing": ([C0, C1, RETURNED], [([C0, C1], (2,))], [(MISSING, (2,), (0, 1))]),
    "a rank that raised is dead": ([C0, C1, RAISED], [([C0, C1], (2,))], [(DEAD, (2,), (0, 1))]),
    "two groups in opposite order": ([C0, B1], [([C0], (1,)), ([B1], (0,))], [(CYCLE, (0, 1), (0, 1))]),
    "a ring of sends": ring("send"),
    "a ring of receives": ring("recv"),
    "the shortest cycle is shown, and rank 2 on the longer way round is a victim": (
        [RECV_01, C1, RECV_20],
        [([RECV_01], (1,)), ([C1], (0, 2)), ([RECV_20], (0,))],
        [(CYCLE, (0, 1), (0, 1, 2))],
    ),
    "a receive from any source waits for one of many": (
        [ANY, RETURNED, RETURNED],
        [([ANY], (1, 2), True)],
        [(MISSING, (1, 2), (0,))],
    ),
    "parts that do not touch are read apart": (
        [SEND_01, SEND_10, C2, RETURNED],
        [*OTHERS, ([C2], (3,))],
        [(CYCLE, (0, 1), (0, 1)), (MISSING, (3,), (2,))],
    ),
    "a rank that is done and not needed": (
        [SEND_01, SEND_10, RETURNED],
        OTHERS,
        [(CYCLE, (0, 1), (0, 1))],
    ),
    "a chain ends in the rank that is really missing": (
        [RECV_01, RECV_12, RETURNED],
        [([RECV_01], (1,)), ([RECV_12], (2,))],
        [(MISSING, (2,), (0, 1))],
    ),
    "a store key that nobody sets": ([KEY, RETURNED], [], [(MISSING, (0,), (0,))]),
    "two ranks may wait for each other's keys": ([KEY, OTHER_KEY], [], [(CYCLE, (0, 1), (0, 1))]),
    "a store key is apart from what others wait for": (
        [KEY, SEND_12, RETURNED, KEY],
        [([SEND_12], (2,))],
        [(MISSING, (0, 3), (0, 3)), (MISSING, (2,), (1,))],
    ),
    "a dead rank and a cycle are both told": (
        [RECV_01, RECV_10, C2, RAISED],
        [([RECV_01], (1,)), ([RECV_10], (0,)), ([C2], (0, 1, 3))],
        [(CYCLE, (0, 1), (0, 1, 2)), (DEAD, (3,), (2,))],
    ),
    "a cycle that waits for a returned rank too is still one": (
        [C0, B1, RETURNED],
        [([C0], (1, 2)), ([B1], (0, 2))],
        [(CYCLE, (0, 1), (0, 1)), (MISSING, (2,), (0, 1))],
    ),
    "a cycle that waits for a dead rank too is still one": (
        [C0, B1, RAISED],
        [([C0], (1, 2)), ([B1], (0, 2))],
        [(CYCLE, (0, 1), (0, 1)), (DEAD, (2,), (0, 1))],
    ),
    "a receive from any source closes no cycle that another source could open": (
        [ANY, RECV_10, RETURNED],
        [([ANY], (1, 2), True), ([RECV_10], (0,))],
        [(MISSING, (2,), (0, 1))],
    ),
    "a receive from any source closes a cycle if all sources are in it": (
        [ANY, RECV_10],
        [([ANY], (1,), True), ([RECV_10], (0,))],
        [(CYCLE, (0, 1), (0, 1))],
    ),
}


@rows(("ranks", "slots", "expected"), READINGS.values(), ids=READINGS)
def test_why_ranks_wait(ranks, slots, expected):
    found = graph_of(ranks, slots).find_wait_reasons()
    assert [(reading.code, reading.culprits, reading.victims) for reading in found] == expected
    assert [reading.cycle for reading in found] == [ranks if code == CYCLE else () for code, ranks, _ in expected]


@rows(
    ("mains", "is_daemon", "expected"),
    [
        ([C0, RETURNED], True, [(MISSING, (1,), (0,))]),
        ([C0, RETURNED], False, [(MISSING, (1,), (0,))]),
        ([KEY, KEY], True, [(MISSING, (0, 1), (0, 1))]),
        ([KEY, OTHER_KEY], True, [(CYCLE, (0, 1), (0, 1))]),
        ([KEY, C1], True, [(MISSING, (0,), (0, 1))]),
        # Thread 3 may have to set the key for which rank 0 waits.
        ([KEY, C1], False, [(CYCLE, (0, 1), (0, 1))]),
        # The main threads wait for theirs: for an event, or at their end.
        ([LockWait(("event", 0, 0)), RETURNED], True, [(MISSING, (0,), (0,))]),
        ([ThreadWait(2, "poller", is_at_end=True), RETURNED], False, [(MISSING, (0,), (0,))]),
    ],
)
def test_a_thread_that_waits_for_a_key_is_a_reason_only_where_a_main_thread_may_need_it(mains, is_daemon, expected):
    """Each rank that has not returned has a thread, 2 or 3, that waits for a key of its own."""
    ranks = [RankSnapshot(1, RETURNED)] if mains[1] is RETURNED else []
    waiting = [each for each in mains if each is not RETURNED]
    for rank, each in reversed([*enumerate(waiting)]):
        wait = CallWait((each,)) if isinstance(each, Call) else each
        poller = ThreadSnapshot(2 + rank, "poller", StoreWait((f"stop{rank}",)), is_daemon)
        ranks.insert(0, RankSnapshot(rank, W, wait, threads=(poller,)))
    calls = [each for each in mains if isinstance(each, Call)]
    slots = [OpenCalls((call,), (1 - call.rank,)) for call in calls]
    graph = WaitGraph(Snapshot(tuple(ranks), tuple(slots)))
    assert [(each.code, each.culprits, each.victims) for each in graph.find_wait_reasons()] == expected
    assert len(graph.list_waiting()) == 2 * len(waiting)


def test_half_the_world_waiting_for_the_other_half_has_a_small_graph():
    size = 1024
    a = [collective(rank, "a") for rank in range(size // 2)]
    b = [collective(rank, "b") for rank in range(size // 2, size)]
    everybody = graph_of([*a, *b], [(a, tuple(range(512, 1024))), (b, tuple(range(512)))])
    assert sum(map(len, everybody.graph.after.values())) == 2 * size
    assert [len(knot) for knot in everybody.graph.strong_components()] == [size + 2]
    (reading,) = everybody.find_wait_reasons()
    assert reading.cycle == (0, 512)


def test_the_text_says_that_any_source_would_do():
    (finding,) = find_deadlocks(graph_of([ANY, RETURNED, RETURNED], [([ANY], (1, 2), True)]))
    assert finding.summary == "rank 0 waits for any of ranks 1, 2, which returned"
    (finding,) = find_deadlocks(graph_of([C0, RETURNED, RETURNED], [([C0], (1, 2))]))
    assert finding.summary == "rank 0 waits for ranks 1, 2, which returned"


def test_the_texts_of_a_key_and_of_a_message():
    key, message_text = find_deadlocks(graph_of([KEY, SEND_12, RETURNED, KEY], [([SEND_12], (2,))]))
    assert "no rank that still runs will set the key" in key.text
    assert "returned without the matching recv" in message_text.text


@pytest.mark.parametrize("returned", [1, 3000])
def test_the_text_of_a_large_world_takes_time_near_linear_in_its_ranks(returned):
    calls = [collective(rank) for rank in range(returned, 6000)]
    start = time.process_time()
    (finding,) = find_deadlocks(graph_of([RETURNED] * returned + calls, [(calls, tuple(range(returned)))]))
    assert time.process_time() - start < 2
    assert len(finding.ranks) == returned


@pytest.mark.parametrize(
    ("ranks", "slots", "edges"),
    [
        ([C0, C1, RETURNED], [([C0, C1], (2,))], [(0, [2], False), (1, [2], False)]),
        ([ANY, RETURNED, RETURNED], [([ANY], (1, 2), True)], [(0, [1, 2], True)]),
        ([KEY, RETURNED], [], [(0, [], True)]),
    ],
    ids=["those that a slot misses", "one of many", "nobody in particular"],
)
def test_for_whom_ranks_wait(ranks, slots, edges):
    found = graph_of(ranks, slots).list_waiting()
    assert [(each.who.rank, [who.rank for who in each.waits_for], each.any_suffices) for each in found] == edges


def test_half_of_the_ranks_that_wait_for_the_other_half_share_what_is_missing():
    calls, missing = [collective(rank) for rank in range(512)], tuple(range(512, 1024))
    found = graph_of([*calls, *[RETURNED] * 512], [(calls, missing)]).list_waiting()
    assert len(found) == 512
    assert len({id(each.waits_for) for each in found}) == 1
    assert [who.rank for who in found[0].waits_for] == list(missing)


def test_threads_wait_by_name():
    threads = (ThreadSnapshot(2, "reader", LockWait(("lock", 0, 0), holder=0)),)
    ranks = (RankSnapshot(0, W, ThreadWait(2, "reader"), threads=threads), RankSnapshot(1, RETURNED))
    found = WaitGraph(Snapshot(ranks, ())).list_waiting()
    assert [(str(each.who), [str(who) for who in each.waits_for]) for each in found] == [
        ("rank 0", ['rank 0, thread "reader"']),
        ('rank 0, thread "reader"', ["rank 0"]),
    ]
