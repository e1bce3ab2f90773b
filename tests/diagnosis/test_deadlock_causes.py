"""Which cause a deadlock is put down to, and to which ranks: on snapshots written down by hand."""

from dataclasses import replace

from ddpsim.simulator.calls import USER_ORIGIN, Call, Origin, Phase, Signature, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock import find_deadlocks
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenCalls, RankSnapshot, RankState, Snapshot
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.waits import CallWait, StoreWait
from tests.kit.rows import rows

from .ending import end, ends_with

LOOP, LATER, BEFORE = Site("train.py", 10, "train"), Site("train.py", 20, "main"), Site("train.py", 9, "train")
BUCKET = Origin(Phase.BUCKET, 0, 0, 4)
BUFFERS = Origin(Phase.BUFFERS, 0, None, 4)
BUCKET_1 = Origin(Phase.BUCKET, 0, 1, 4, parameters=("a", "b"))
REBUILD = Origin(Phase.REBUILD, 0)
CONTROL = Origin(Phase.JOIN_CONTROL, 0, None, 4)
SHADOW = Origin(Phase.BUCKET, 0, 0, shadow=True)
CYCLE, MISSING, DEAD = "deadlock.cycle", "deadlock.missing_rank", "deadlock.dead_rank"


def waiting(rank, operation, origin=USER_ORIGIN, *, group="default", peer=None):
    call = Call(rank, group, 8, Signature(operation), LOOP, origin, peer)
    return RankSnapshot(rank, RankState.WAITING, CallWait((call,)), call, 3)


def returned(rank, *, steps=3, last=None):
    return RankSnapshot(rank, RankState.RETURNED, None, last, steps)


def for_key(rank):
    return RankSnapshot(rank, RankState.WAITING, StoreWait((f"key {rank}",)))


def found(*ranks):
    """The one finding for ranks that meet by group; all are members of every group."""
    by_group = {}
    for rank in ranks:
        for call in rank.calls:
            by_group.setdefault((call.group, call.peer, call.rank if call.is_point_to_point else -1), []).append(call)
    slots = []
    for (_, peer, _), calls in by_group.items():
        here = {call.rank for call in calls}
        missing = tuple(rank.rank for rank in ranks if rank.rank not in here) if peer is None else (peer,)
        slots.append(OpenCalls(tuple(calls), missing))
    (finding,) = find_deadlocks(WaitGraph(Snapshot(ranks, tuple(slots), 9)))
    return finding


def ring_of(*ranks):
    """The one finding for ranks of which each waits for the next one."""
    slots = [OpenCalls(rank.wait.calls, ((rank.rank + 1) % len(ranks),)) for rank in ranks]
    (finding,) = find_deadlocks(WaitGraph(Snapshot(ranks, tuple(slots), 9)))
    return finding


def three_and(odd, operation="all_reduce", origin=USER_ORIGIN, **options):
    """Ranks 0, 1, 3 wait in one call, and rank 2 is `odd`."""
    first, second, last = (waiting(rank, operation, origin, **options) for rank in (0, 1, 3))
    return first, second, odd, last


def one_and_three(operation, origin=USER_ORIGIN):
    """Rank 0 waits in a call, and the others have returned."""
    return waiting(0, operation, origin), *(returned(rank) for rank in (1, 2, 3))


def two_in(operation):
    return waiting(0, operation), waiting(1, operation)


def to_each_other(first, second):
    return waiting(0, first, peer=1), waiting(1, second, peer=0)


def in_groups(*groups, origin=USER_ORIGIN):
    return tuple(waiting(rank, "all_reduce", origin, group=group) for rank, group in enumerate(groups))


RAISED = RankSnapshot(2, RankState.RAISED, error="ValueError: no", error_site=LATER)
FORWARD = Call(2, "default", 7, Signature("broadcast"), LOOP, BUFFERS)
"""Of the step whose bucket others wait in."""
EARLIER = FORWARD._replace(origin=BUFFERS._replace(step=3))

# What each rank does, what is found, whose fault it is, and the cause.
CASES = {
    # a wrapper's calls
    "no input, bucket": (three_and(returned(2), origin=BUCKET), MISSING, (2,), Cause.RAN_OUT_OF_INPUT),
    "no input, buffers": (three_and(returned(2), origin=BUFFERS), MISSING, (2,), Cause.RAN_OUT_OF_INPUT),
    "no input, rebuild": (three_and(returned(2), origin=REBUILD), MISSING, (2,), Cause.RAN_OUT_OF_INPUT),
    "many have no input": (one_and_three("all_reduce", BUCKET), MISSING, (1, 2, 3), Cause.RAN_OUT_OF_INPUT),
    **{
        f"a forward without gradients, step {step}": (
            one_and_three("broadcast", BUFFERS._replace(step=step)),
            MISSING,
            (0,),
            Cause.FORWARD_ALONE,
        )
        for step in (0, 2, 3)
    },
    "one forward more": (one_and_three("broadcast", BUFFERS), MISSING, (1, 2, 3), Cause.RAN_OUT_OF_INPUT),
    "a step ahead": (three_and(returned(2, steps=4), origin=BUCKET), MISSING, (2,), Cause.BACKWARD_WITHOUT_BUCKET),
    "forward": (three_and(returned(2, last=FORWARD), origin=BUCKET), MISSING, (2,), Cause.BACKWARD_WITHOUT_BUCKET),
    "earlier forward": (three_and(returned(2, last=EARLIER), origin=BUCKET), MISSING, (2,), Cause.RAN_OUT_OF_INPUT),
    "a later bucket": (three_and(returned(2), origin=BUCKET_1), MISSING, (2,), Cause.BUCKET_LEFT_OUT),
    "not checked": (
        three_and(returned(2), origin=Origin(Phase.PARAMETER_CHECK, 0)),
        MISSING,
        (2,),
        Cause.WRAPPED_ALONE,
    ),
    "not wrapped": (
        three_and(returned(2), origin=Origin(Phase.STATE_BROADCAST, 0)),
        MISSING,
        (2,),
        Cause.WRAPPED_ALONE,
    ),
    "outside the join": (three_and(returned(2), origin=CONTROL), MISSING, (2,), Cause.JOINED_ON_SOME_RANKS),
    "outside the join, bucket": (three_and(returned(2), origin=SHADOW), MISSING, (2,), Cause.JOINED_ON_SOME_RANKS),
    # the program's own calls
    "one call more": (one_and_three("barrier"), MISSING, (0,), Cause.ONE_CALL_MORE),
    "one call less": (three_and(returned(2), "barrier"), MISSING, (2,), Cause.RETURNED_EARLY),
    "two left": ((*two_in("barrier"), returned(2), returned(3)), MISSING, (2, 3), Cause.RETURNED_EARLY),
    "a dead rank": (three_and(RAISED, origin=BUCKET), DEAD, (2,), Cause.DIED),
    # groups
    "not created": (three_and(returned(2), "new_group", group="1"), MISSING, (2,), Cause.GROUP_NOT_CREATED),
    "not created, elsewhere": (
        (waiting(0, "barrier"), waiting(1, "new_group", group="1")),
        CYCLE,
        (0,),
        Cause.GROUP_NOT_CREATED,
    ),
    "two created at once": (
        (waiting(0, "new_group", group="1"), waiting(1, "new_group", group="2")),
        CYCLE,
        (0, 1),
        Cause.GROUP_NOT_CREATED,
    ),
    "two orders": (in_groups("a", "b"), CYCLE, (0, 1), Cause.GROUPS_IN_OTHER_ORDER, {"fact": '"a" and "b"'}),
    "one order is as good as the other": (in_groups("a", "a", "b", "a"), CYCLE, (0, 2), Cause.GROUPS_IN_OTHER_ORDER),
    "wrappers": (in_groups("a", "a", "b", "a", origin=BUCKET), CYCLE, (2,), Cause.WRAPPERS_MIXED),
    "wrappers, two orders": (
        in_groups("a", "a", "b", "b", origin=BUCKET),
        CYCLE,
        (0, 2),
        Cause.WRAPPERS_MIXED,
        {"who": "some ranks"},
    ),
    # messages and store keys
    "sends": (to_each_other("send", "send"), CYCLE, (0, 1), Cause.SENDS_FIRST),
    "receives": (to_each_other("recv", "recv"), CYCLE, (0, 1), Cause.RECEIVES_FIRST),
    "messages that miss each other": (to_each_other("send", "recv"), CYCLE, (0, 1), Cause.MESSAGES_MISS_EACH_OTHER),
    **{
        f"no {other}": (
            (waiting(0, operation, peer=1), returned(1), returned(2)),
            MISSING,
            (1,),
            Cause.UNPAIRED_MESSAGE,
            {"operation": other},
        )
        for operation, other in (("send", "recv"), ("recv", "send"))
    },
    "keys in a circle": ((for_key(0), for_key(1)), CYCLE, (0, 1), Cause.KEYS_IN_A_CIRCLE),
    "a key": ((for_key(0), returned(1)), MISSING, (0,), Cause.KEY_NEVER_SET),
}


@rows("case", CASES.values(), ids=CASES)
def test_whose_fault_it_is_and_why(case):
    ranks, code, culprits, cause, *facts = case
    finding = found(*ranks)
    assert (finding.code, finding.ranks) == (code, culprits)
    ends_with(finding, cause, **dict(*facts))


def test_peers_that_do_not_name_each_other():
    ranks = tuple(waiting(rank, "send", peer=(rank + 1) % 3) for rank in range(3))
    sends = [rank.wait.calls[0] for rank in ranks]
    receives = [call._replace(signature=Signature("recv")) for call in sends]

    def told(received):
        slots = tuple(OpenCalls((call,), (call.peer,)) for call in (*sends, *received))
        (finding,) = find_deadlocks(WaitGraph(Snapshot(ranks, slots, 9)))
        return finding

    ends_with(told(receives), Cause.PEERS_DIFFER, fact="send #8 of rank 0 names rank 1, whose recv names rank 2")
    ends_with(told(receives[:2]), Cause.SENDS_FIRST)


def test_the_culprits_lines_come_first():
    assert found(*CASES["a dead rank"][0]).sites[0] == LATER
    assert found(*CASES["a forward without gradients, step 0"][0]).sites[0] == LOOP
    assert found(*CASES["wrappers"][0]).cycle == (0, 2)


def test_of_a_culprit_that_destroyed_its_group_the_last_call_comes_first_unless_that_is_the_cause():
    def left(operation, origin):
        ended = replace(
            returned(2, last=Call(2, "default", 7, Signature(operation), BEFORE)), destroyed={"default": LATER}
        )
        return found(*three_and(ended, operation, origin)).sites

    assert left("all_reduce", BUCKET) == (BEFORE, LATER, LOOP)
    assert left("all_reduce", USER_ORIGIN) == (LATER, LOOP)


def test_a_line_that_ranks_came_to_from_several_is_followed_by_those():
    def through(rank, caller):
        return replace(rank, wait=CallWait((rank.wait.calls[0]._replace(caller=caller),)))

    first, second = in_groups("a", "b")
    assert ring_of(through(first, BEFORE), through(second, LATER)).sites == (LOOP, BEFORE, LATER)
    assert ring_of(through(first, BEFORE), through(second, BEFORE)).sites == (LOOP,)


def cycle_line(finding):
    (line,) = (line for line in finding.text.splitlines() if line.startswith("  cycle "))
    return line[10:]


def test_a_large_ring_is_told_by_its_ends():
    finding = ring_of(*in_groups(*[f"g{rank}" for rank in range(64)]))
    assert finding.cycle == finding.ranks == tuple(range(64))
    assert cycle_line(finding) == "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 6 -> 7 -> ... -> 61 -> 62 -> 63 -> 0"
    named = '"g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7", ..., "g59", "g60", "g61", "g62" and "g63"'
    assert f"begin with different groups of {named}, and each" in end(finding)[0]


def test_a_ring_that_fits_is_told_whole():
    finding = ring_of(*in_groups(*[f"g{rank}" for rank in range(15)]))
    assert cycle_line(finding) == " -> ".join(map(str, [*range(15), 0]))
    assert "..." not in finding.text
