"""Which cause a deadlock is put down to, and to which ranks: on snapshots written down by hand."""

import pytest

from ddpsim.simulator.calls import USER_ORIGIN, Call, Origin, Phase, Signature, Site
from ddpsim.simulator.diagnosis.deadlock import deadlocks
from ddpsim.simulator.diagnosis.snapshot import OpenSlot, RankSnapshot, RankState, Snapshot
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.waits import CallWait, StoreWait

LOOP, LATER = Site("train.py", 10, "train"), Site("train.py", 20, "main")
BUCKET = Origin(Phase.BUCKET, 0, 0, 4)
BUFFERS = Origin(Phase.BUFFERS, 0, None, 4)


def waiting(rank, operation, origin=USER_ORIGIN, *, group="default", peer=None, steps=3):
    call = Call(rank, group, 8, Signature(operation), LOOP, origin, peer)
    return RankSnapshot(rank, RankState.WAITING, CallWait((call,)), call, 8, steps)


def returned(rank, *, steps=3, last=None):
    return RankSnapshot(rank, RankState.RETURNED, None, last, 7, steps)


def found(*ranks):
    """The one finding for ranks that meet by group; all are members of every group."""
    by_group = {}
    for rank in ranks:
        for call in rank.wait.calls if isinstance(rank.wait, CallWait) else ():
            by_group.setdefault((call.group, call.peer, call.rank if call.is_point_to_point else -1), []).append(call)
    slots = []
    for (_, peer, _), calls in by_group.items():
        here = {call.rank for call in calls}
        missing = tuple(rank.rank for rank in ranks if rank.rank not in here) if peer is None else (peer,)
        slots.append(OpenSlot(tuple(calls), missing))
    (finding,) = deadlocks(WaitGraph(Snapshot(ranks, tuple(slots), 9)))
    return finding


def end(finding):
    *_, cause, remedy = finding.text.splitlines()
    assert cause.startswith("  cause   ")
    assert remedy.startswith("  try     ")
    return cause[10:], remedy[10:]


def ring_of(*ranks):
    """The one finding for ranks of which each waits for the next one."""
    slots = [OpenSlot(rank.wait.calls, ((rank.rank + 1) % len(ranks),)) for rank in ranks]
    (finding,) = deadlocks(WaitGraph(Snapshot(ranks, tuple(slots), 9)))
    return finding


def three_and(odd, operation="all_reduce", origin=USER_ORIGIN, **options):
    """Ranks 0, 1, 3 wait in one call, and rank 2 is `odd`."""
    first, second, last = (waiting(rank, operation, origin, **options) for rank in (0, 1, 3))
    return found(first, second, odd, last)


def one_and_three(operation, origin=USER_ORIGIN, **options):
    """Rank 0 waits in a call, and the others have returned."""
    return found(waiting(0, operation, origin, **options), *(returned(rank) for rank in (1, 2, 3)))


@pytest.mark.parametrize("origin", [BUCKET, BUFFERS, Origin(Phase.REBUILD, 0)])
def test_a_rank_without_input(origin):
    finding = three_and(returned(2), origin=origin)
    assert (finding.code, finding.ranks) == ("deadlock.missing_rank", (2,))
    cause, remedy = end(finding)
    assert cause == "rank 2 ran out of input, or stopped, before the others, and nothing shadows its collectives"
    assert remedy.startswith("wrap the loop in `with model.join():`; if a rank decides to stop, share that")


def test_many_ranks_without_input_are_at_fault_too():
    finding = one_and_three("all_reduce", BUCKET)
    assert finding.ranks == (1, 2, 3)
    assert end(finding)[0].endswith("nothing shadows their collectives")


@pytest.mark.parametrize("step", [0, 2, 3])
def test_a_forward_without_gradients_on_one_rank_is_an_evaluation(step):
    finding = one_and_three("broadcast", BUFFERS._replace(step=step))
    assert (finding.code, finding.ranks) == ("deadlock.missing_rank", (0,))
    assert finding.sites[0] == LOOP
    assert "rank 0 made one that the others did not" in end(finding)[0]
    assert end(finding)[1].startswith("evaluate on model.module")


def test_one_forward_more_in_training_is_uneven_input():
    assert end(one_and_three("broadcast", BUFFERS))[1].startswith("wrap the loop in `with model.join():`")


def test_one_call_more_on_one_rank():
    finding = one_and_three("barrier")
    assert finding.ranks == (0,)
    assert end(finding)[0].startswith("rank 0 made barrier #8, and the others did not")
    assert "on every rank, or on none" in end(finding)[1]


def test_one_call_less_on_one_rank():
    finding = three_and(returned(2), "barrier")
    assert finding.ranks == (2,)
    assert end(finding)[0] == "rank 2 returned without making barrier #8"
    assert "destroy the group) only when all are done" in end(finding)[1]


def test_two_against_two_are_put_down_to_those_that_left():
    finding = found(waiting(0, "barrier"), waiting(1, "barrier"), returned(2), returned(3))
    assert finding.ranks == (2, 3)


def test_a_step_that_did_not_reduce():
    finding = three_and(returned(2, steps=4), origin=BUCKET)
    assert finding.ranks == (2,)
    assert "its loss does not depend on these parameters, or its forward ran under no_sync()" in end(finding)[0]
    assert "multiplied by zero" in end(finding)[1]


def test_a_step_of_which_only_the_forward_was_made():
    last = Call(2, "default", 7, Signature("broadcast"), LOOP, BUFFERS)
    assert "does not depend on these parameters" in end(three_and(returned(2, last=last), origin=BUCKET))[0]
    earlier = last._replace(origin=BUFFERS._replace(step=3))
    assert "ran out of input" in end(three_and(returned(2, last=earlier), origin=BUCKET))[0]


def test_a_rank_that_wraps_nothing():
    for phase in (Phase.PARAMETER_CHECK, Phase.STATE_BROADCAST):
        finding = three_and(returned(2), "broadcast", Origin(phase, 0))
        assert end(finding)[0].startswith("constructing DistributedDataParallel takes every rank")


def test_a_rank_outside_the_join():
    for origin in (Origin(Phase.JOIN_CONTROL, 0, None, 4), BUCKET._replace(shadow=True, step=None)):
        finding = three_and(returned(2), origin=origin)
        assert "rank 2 is not, or has left it" in end(finding)[0]
        assert "enter the join on every rank" in end(finding)[1]


def test_a_group_that_some_ranks_do_not_create():
    finding = three_and(returned(2), "new_group", group="1")
    assert finding.ranks == (2,)
    assert "rank 2 did not come to it" in end(finding)[0]
    finding = found(waiting(0, "barrier"), waiting(1, "new_group", group="1"))
    assert finding.code == "deadlock.cycle"
    assert finding.ranks == (0,)
    assert end(finding)[0] == "creating a group takes all its members at once, and rank 0 did not come to it"
    assert "in one order" in end(finding)[1]


def test_two_groups_that_are_created_at_once():
    finding = found(waiting(0, "new_group", group="1"), waiting(1, "new_group", group="2"))
    assert (finding.code, finding.ranks) == ("deadlock.cycle", (0, 1))
    assert "ranks 0, 1 did not come to it" in end(finding)[0]


def test_groups_in_other_orders():
    finding = found(waiting(0, "all_reduce", group="a"), waiting(1, "all_reduce", group="b"))
    assert end(finding) == (
        'the ranks call groups "a" and "b" in different orders',
        "let every rank use its groups in one global order",
    )
    ring = (waiting(rank, "all_reduce", group=group) for rank, group in enumerate("abc"))
    finding = ring_of(*ring)
    assert finding.ranks == (0, 1, 2)
    assert 'begin with different ones of groups "a", "b" and "c"' in end(finding)[0]


def cycle_line(finding):
    (line,) = (line for line in finding.text.splitlines() if line.startswith("  cycle "))
    return line[10:]


def test_a_large_ring_is_told_by_its_ends():
    finding = ring_of(*(waiting(rank, "all_reduce", group=f"g{rank}") for rank in range(64)))
    assert finding.cycle == tuple(range(64))
    assert cycle_line(finding) == "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 6 -> 7 -> ... -> 61 -> 62 -> 63 -> 0"
    named = '"g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7", ..., "g59", "g60", "g61", "g62" and "g63"'
    assert f"begin with different ones of groups {named}, and each" in end(finding)[0]


def test_a_ring_that_fits_is_told_whole():
    finding = ring_of(*(waiting(rank, "all_reduce", group=f"g{rank}") for rank in range(15)))
    assert cycle_line(finding) == " -> ".join(map(str, [*range(15), 0]))
    assert "..." not in finding.text


def test_one_order_of_the_users_own_groups_is_as_good_as_the_other():
    finding = found(*(waiting(rank, "all_reduce", group="b" if rank == 2 else "a") for rank in range(4)))
    assert finding.ranks == (0, 2)


def test_wrappers_in_another_order_each_in_its_own_group():
    ranks = [waiting(rank, "all_reduce", BUCKET, group="b" if rank == 2 else "a") for rank in range(4)]
    finding = found(*ranks)
    assert (finding.code, finding.ranks, finding.cycle) == ("deadlock.cycle", (2,), (0, 2))
    assert end(finding)[0].startswith("rank 2 used the wrappers in another order than the others")
    assert "groups of their own do not help" in end(finding)[1]
    tie = found(*ranks[:3], waiting(3, "all_reduce", BUCKET, group="b"))
    assert tie.ranks == (0, 2)
    assert end(tie)[0].startswith("some ranks used the wrappers")


@pytest.mark.parametrize(
    ("operation", "words"), [("send", "order the calls by the parity of the rank"), ("recv", "let one rank send first")]
)
def test_messages_in_a_circle(operation, words):
    finding = found(waiting(0, operation, peer=1), waiting(1, operation, peer=0))
    assert finding.ranks == (0, 1)
    assert words in end(finding)[1]
    assert "batch_isend_irecv" in end(finding)[1]


def test_messages_that_miss_each_other():
    finding = found(waiting(0, "send", peer=1), waiting(1, "recv", peer=0))
    assert finding.code == "deadlock.cycle"
    assert end(finding)[1] == "give both sides of a message the same tag and group"


def test_a_bucket_that_a_rank_left_out_of_its_step():
    finding = three_and(returned(2), origin=BUCKET._replace(bucket=1, parameters=("a", "b")))
    assert finding.ranks == (2,)
    assert end(finding)[0].endswith("its loss does not depend on all of a, b")
    assert "find_unused_parameters=True" in end(finding)[1]


def test_a_message_without_its_other_side():
    for operation, other in (("send", "recv"), ("recv", "send")):
        finding = found(waiting(0, operation, peer=1), returned(1), returned(2))
        assert finding.ranks == (1,)
        assert end(finding)[0] == f"rank 1 returned without the matching {other}"


def test_store_keys():
    ranks = [RankSnapshot(rank, RankState.WAITING, StoreWait((f"key {rank}",))) for rank in range(2)]
    assert end(found(*ranks))[0].startswith("each rank of the cycle waits for a store key")
    assert end(found(ranks[0], returned(1)))[0] == "nobody who still runs will set the key"


def test_a_dead_rank():
    dead = RankSnapshot(2, RankState.RAISED, error="ValueError: no", error_site=LATER)
    finding = three_and(dead, origin=BUCKET)
    assert (finding.code, finding.ranks) == ("deadlock.dead_rank", (2,))
    assert finding.sites[0] == LATER
    assert "rank 2 left by an exception" in end(finding)[0]
