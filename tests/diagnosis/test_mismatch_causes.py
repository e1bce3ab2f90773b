"""Which cause calls that met and do not agree are put down to, and to which ranks: from calls written down by hand."""

import pytest

from ddpsim.simulator.calls import USER_ORIGIN, Call, CallPart, Origin, Parallelism, Phase, Signature, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.mismatch import message_mismatch_finding, mismatch_finding
from ddpsim.simulator.matching.agreement import first_differing_field, message_differing_field
from tests.kit.rows import rows

from .ending import ends_with

SUM = Signature("all_reduce", ((25,),), "float32", "SUM")
METRIC = Signature("all_reduce", ((1,),), "float32", "SUM")
BARRIER = Signature("barrier")
BROADCAST = Signature("broadcast", ((8,),), "float32", root=0)
TO_ROOT = Signature("reduce", ((8,),), "float32", "SUM", root=0)
GATHER = Signature("all_gather", ((1,),), "int64")
HALF = Signature("all_reduce", ((25,),), "float16", "SUM")
MAP = Signature("all_reduce", ((6,),), "int32", "SUM")
LOOP, LATER, LAYER = Site("train.py", 10, "train"), Site("train.py", 20, "main"), Site("train.py", 5, "forward")


def of(phase, signature=SUM, site=LOOP, *, step=4, wrapper=0, bucket=None, shadow=False, parameters=()):
    return signature, Origin(phase, wrapper, bucket, step, shadow, parameters), site


def users(signature, site=LATER):
    return signature, USER_ORIGIN, site


def at(line):
    return LOOP._replace(line=line)


BUCKET = of(Phase.BUCKET, bucket=0)
BUCKET_1 = of(Phase.BUCKET, bucket=1, parameters=("a", "b"))
BUFFERS = of(Phase.BUFFERS, BROADCAST)
EARLIER_BUFFERS = of(Phase.BUFFERS, BROADCAST, step=3)
REBUILD = of(Phase.REBUILD, BROADCAST, step=None)
WRAPPING = of(Phase.STATE_BROADCAST, BROADCAST, step=None)
CHECKING = of(Phase.PARAMETER_CHECK, BROADCAST, step=None)
CONTROL = of(Phase.JOIN_CONTROL, METRIC)
SHADOW = of(Phase.BUCKET, SUM, LATER, step=None, shadow=True)
SHADOW_CONTROL = of(Phase.JOIN_CONTROL, METRIC, LATER, step=None, shadow=True)
PLANNING = GATHER, Origin(part=CallPart(Parallelism.CHECKPOINT, 'step "plan"')), LATER
LARGER = BROADCAST._replace(shapes=((9,),))

# What most ranks call, what rank 2 calls, and the cause.
CASES = {
    # a rank that left its loop for another collective
    **{
        f"{name}, then {goes_on_to}": (others, users(goes_on_to), Cause.LEFT_LOOP, {"operation": goes_on_to.operation})
        for name, others in {"bucket": BUCKET, "buffers": BUFFERS, "rebuild": REBUILD}.items()
        for goes_on_to in (BARRIER, METRIC, SUM, GATHER)
    },
    "a call above the forward": (BUCKET, users(BARRIER, at(8)), Cause.DECIDED_ALONE, {"operation": "barrier"}),
    "a call below the forward": (BUCKET, users(BARRIER, at(12)), Cause.LEFT_LOOP, {"operation": "barrier"}),
    # a call that it did not make
    "went on to its bucket": (users(BARRIER), BUCKET, Cause.STAYED_IN_LOOP, {"operation": "barrier"}),
    "went on to rebuild": (users(BARRIER), of(Phase.REBUILD), Cause.STAYED_IN_LOOP, {"operation": "barrier"}),
    "a forward, barrier": (users(BARRIER), EARLIER_BUFFERS, Cause.FORWARD_ALONE),
    "a forward, metric": (users(METRIC), EARLIER_BUFFERS, Cause.FORWARD_ALONE),
    "a forward, the next one": (BUFFERS, EARLIER_BUFFERS, Cause.FORWARD_ALONE),
    "a layer": (users(METRIC, LAYER), BUCKET, Cause.COLLECTIVE_IN_FORWARD),
    "a layer more": (BUCKET, users(METRIC, LAYER), Cause.COLLECTIVE_IN_FORWARD),
    # join
    "a metric in the loop": (users(METRIC), SHADOW, Cause.UNKNOWN_TO_JOIN, {"operation": "all_reduce"}),
    "a metric in a layer": (users(METRIC, LAYER), SHADOW, Cause.UNKNOWN_TO_JOIN),
    "a metric, at the count": (users(SUM), SHADOW_CONTROL, Cause.UNKNOWN_TO_JOIN),
    "an evaluation": (CONTROL, SHADOW, Cause.OTHER_SHARE_IN_JOIN),
    "not listed": (of(Phase.BUCKET, wrapper=1, bucket=0), SHADOW_CONTROL, Cause.NOT_IN_JOIN),
    "entered on some ranks": (CONTROL, BUCKET, Cause.JOINED_ON_SOME_RANKS),
    # wrappers
    "other order, alike": (BUCKET, of(Phase.BUCKET, wrapper=1, bucket=0), Cause.WRAPPERS_MIXED),
    "other order": (BUCKET, of(Phase.BUCKET, METRIC, wrapper=1, bucket=0), Cause.WRAPPERS_MIXED),
    "state": (WRAPPING, of(Phase.STATE_BROADCAST, LARGER, step=None), Cause.MODELS_DIFFER),
    "check": (CHECKING, of(Phase.PARAMETER_CHECK, LARGER, step=None), Cause.MODELS_DIFFER),
    "wraps nothing": (WRAPPING, users(BARRIER), Cause.WRAPPED_ALONE),
    "wraps nothing, reduces": (WRAPPING, BUCKET, Cause.WRAPPED_ALONE),
    # buckets and buffers
    "other size": (BUCKET, of(Phase.BUCKET, METRIC, bucket=0), Cause.UNUSED_ON_SOME_RANKS),
    "other bucket": (BUCKET, of(Phase.BUCKET, bucket=1), Cause.UNUSED_ON_SOME_RANKS),
    "left out, metric": (BUCKET_1, users(METRIC), Cause.BUCKET_LEFT_OUT, {"parameters": "a, b"}),
    "left out, forward": (
        BUCKET_1,
        of(Phase.BUFFERS, BROADCAST, step=5),
        Cause.BUCKET_LEFT_OUT,
        {"parameters": "a, b"},
    ),
    "left out, next step": (BUCKET_1, of(Phase.BUCKET, METRIC, step=5, bucket=0), Cause.BUCKET_LEFT_OUT),
    "used map": (BUCKET, of(Phase.USED_MAP, MAP), Cause.REDUCED_IN_OTHER_WAY),
    "rebuild": (BUCKET, REBUILD, Cause.REDUCED_IN_OTHER_WAY),
    "backward left out": (BUCKET, of(Phase.BUCKET, bucket=0, step=5), Cause.SKIPPED_BACKWARD),
    # Engines count the step of a forward from its beginning, or from its backward.
    "forward": (BUCKET, BUFFERS, Cause.EXTRA_FORWARD),
    "next forward": (BUCKET, of(Phase.BUFFERS, BROADCAST, step=5), Cause.EXTRA_FORWARD),
    "hook": (BUCKET, of(Phase.BUCKET, HALF, bucket=0), Cause.HOOK_ON_SOME_RANKS, {"field": "dtype"}),
    "buffers": (BUFFERS, of(Phase.BUFFERS, LARGER), Cause.BUFFERS_DIFFER),
    # a checkpoint: whether the other call is made in it, by a state_dict(), is not known
    "no checkpoint": (PLANNING, users(BARRIER), Cause.CHECKPOINT_MEETS_CALL, {"operation": "barrier"}),
    "a state that gathers": (PLANNING, users(GATHER), Cause.CHECKPOINT_MEETS_CALL, {"operation": "all_gather"}),
    # the program's own calls
    "a branch": (users(SUM, LOOP), users(BARRIER, at(12)), Cause.OTHER_BRANCH),
    "a branch, alike": (users(SUM, LOOP), users(METRIC, at(12)), Cause.OTHER_BRANCH),
    "two tasks": (users(SUM, LOOP), users(METRIC), Cause.OTHER_FUNCTION),
    "two functions": (users(SUM, LOOP), users(BARRIER), Cause.OTHER_BRANCH),
    **{
        f"argument {number}": (users(most, LOOP), users(odd, LOOP), cause)
        for number, (most, odd, cause) in enumerate(
            [
                (SUM, METRIC, Cause.OTHER_ARGUMENT),
                (SUM, SUM._replace(dtype="int32"), Cause.OTHER_DTYPE),
                (SUM, SUM._replace(reduction="MAX"), Cause.OTHER_REDUCTION),
                (BROADCAST, BROADCAST._replace(root=1), Cause.OTHER_ROOT),
                (GATHER, GATHER._replace(shapes=((2,),)), Cause.OTHER_SHAPE_GATHERED),
                (SUM, SUM._replace(shapes=((5, 5),)), Cause.OTHER_LAYOUT),
                (TO_ROOT, TO_ROOT._replace(root=1), Cause.OTHER_DESTINATION),
                (Signature("new_group", members=(0, 1)), Signature("new_group", members=(0, 2)), Cause.OTHER_MEMBERS),
            ]
        )
    },
}


def mismatch_of(sides):
    """The finding for calls of ranks that meet."""
    calls = [Call(rank, "default", 8, signature, site, origin) for rank, (signature, origin, site) in enumerate(sides)]
    return mismatch_finding(calls, first_differing_field(calls), 7)


@rows("case", CASES.values(), ids=CASES)
def test_the_odd_one_out_and_what_it_did(case):
    most, odd, cause, *facts = case
    finding = mismatch_of([most, most, odd, most])
    assert finding.ranks == (2,)
    assert finding.sites == tuple(dict.fromkeys((odd[2], most[2])))
    ends_with(finding, cause, **dict(*facts))


def test_with_two_ranks_the_forward_is_named_and_both_are_at_fault():
    finding = mismatch_of([EARLIER_BUFFERS, users(BARRIER)])
    assert finding.ranks == (0, 1)
    ends_with(finding, Cause.FORWARD_ALONE, who="rank 0")


@pytest.mark.parametrize(("roots", "who"), [((0, 1), "each rank"), ((0, 0, 1, 1), "some ranks")])
def test_who_differs_if_nobody_is_in_the_minority(roots, who):
    finding = mismatch_of([users(TO_ROOT._replace(root=root), LOOP) for root in roots])
    ends_with(finding, Cause.OTHER_DESTINATION, who=who)


def test_a_message_that_does_not_fit_its_receive():
    send = Call(0, "g", 0, Signature("send", ((5,),), "float32"), LOOP, peer=1)
    receive = Call(1, "g", 0, Signature("recv", ((3,),), "float32"), LATER, peer=0)
    finding = message_mismatch_finding(send, receive, message_differing_field(send, receive), 3)
    assert finding.ranks == (0, 1)
    ends_with(finding, Cause.OTHER_MESSAGE, fact="shape")
