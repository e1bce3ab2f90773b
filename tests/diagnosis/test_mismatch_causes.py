"""Which cause calls that met and do not agree are put down to, and to which ranks: from calls written down by hand."""

import pytest

from ddpsim.simulator.calls import USER_ORIGIN, Call, Origin, Phase, Signature, Site
from ddpsim.simulator.diagnosis.mismatch import mismatch, pair_mismatch
from ddpsim.simulator.matching.agreement import disagreement, pair_disagreement

SUM = Signature("all_reduce", ((25,),), "float32", "SUM")
METRIC = Signature("all_reduce", ((1,),), "float32", "SUM")
BARRIER = Signature("barrier")
BROADCAST = Signature("broadcast", ((8,),), "float32", root=0)
MAP = Signature("all_reduce", ((6,),), "int32", "SUM")
LOOP, LATER, LAYER = Site("train.py", 10, "train"), Site("train.py", 20, "main"), Site("train.py", 5, "forward")


def of(phase, *, step=4, wrapper=0, bucket=None, shadow=False):
    return Origin(phase, wrapper, bucket, step, shadow)


BUCKET = (SUM, of(Phase.BUCKET, bucket=0), LOOP)
BUFFERS = (BROADCAST, of(Phase.BUFFERS), LOOP)


def found(most, odd, *, who=2, size=4):
    """The finding for calls of `size` ranks; `odd` is what rank `who` calls, or those ranks."""
    odd_ones = (who,) if isinstance(who, int) else who
    calls = []
    for rank in range(size):
        signature, origin, site = odd if rank in odd_ones else most
        calls.append(Call(rank, "default", 8, signature, site, origin))
    return mismatch(calls, disagreement(calls), 7)


def end(finding):
    *_, cause, remedy = finding.text.splitlines()
    assert cause.startswith("  cause   ")
    assert remedy.startswith("  try     ")
    return cause[10:], remedy[10:]


@pytest.mark.parametrize("goes_on_to", [BARRIER, METRIC, SUM, Signature("all_gather", ((1,),), "int64")])
@pytest.mark.parametrize("others", [BUCKET, BUFFERS, (BROADCAST, of(Phase.REBUILD, step=None), LOOP)])
def test_a_rank_that_left_its_loop_for_another_collective(others, goes_on_to):
    finding = found(others, (goes_on_to, USER_ORIGIN, LATER))
    assert finding.ranks == (2,)
    assert finding.sites == (LATER, LOOP)
    cause, remedy = end(finding)
    assert cause.startswith("rank 2 left the training loop before the others")
    assert cause.endswith(f"went on to {goes_on_to.operation}")
    assert "model.join()" in remedy
    assert "all_reduce(MIN)" in remedy
    assert "broadcast the decision to stop" in remedy


@pytest.mark.parametrize("phase", [Phase.BUCKET, Phase.REBUILD])
def test_a_rank_that_went_on_to_train_without_a_call_of_the_others(phase):
    finding = found((BARRIER, USER_ORIGIN, LATER), (SUM, of(phase, bucket=0), LOOP))
    assert finding.ranks == (2,)
    cause, remedy = end(finding)
    assert cause.startswith("rank 2 went on to train without barrier, which the others made")
    assert remedy.startswith("let one rank decide and broadcast it")


@pytest.mark.parametrize("others", [BARRIER, METRIC])
def test_a_forward_through_the_wrapper_on_one_rank_only(others):
    finding = found((others, USER_ORIGIN, LATER), (BROADCAST, of(Phase.BUFFERS, step=3), LOOP), who=0)
    assert finding.ranks == (0,)
    cause, remedy = end(finding)
    assert "broadcasts buffers" in cause
    assert "rank 0 made one that the others did not" in cause
    assert remedy.startswith("evaluate on model.module, the inner module, or on all ranks")


def test_that_forward_may_meet_the_others_next_one():
    finding = found(BUFFERS, (BROADCAST, of(Phase.BUFFERS, step=3), LATER), who=0)
    assert finding.ranks == (0,)
    assert "rank 0 made one that the others did not" in end(finding)[0]


def test_with_two_ranks_the_forward_is_named_and_both_are_at_fault():
    finding = found((BARRIER, USER_ORIGIN, LATER), (BROADCAST, of(Phase.BUFFERS, step=3), LOOP), who=0, size=2)
    assert finding.ranks == (0, 1)
    assert "rank 0 made one" in end(finding)[0]
    assert "model.join()" in end(finding)[1]


@pytest.mark.parametrize("who", [2, (0, 1, 3)])
def test_a_layer_that_communicates_and_was_left_out(who):
    finding = found((METRIC, USER_ORIGIN, LAYER), BUCKET, who=who)
    assert finding.ranks == (2,)
    assert "rank 2 left one out or made one more" in end(finding)[0]


@pytest.mark.parametrize("most", [(METRIC, USER_ORIGIN, LAYER), (METRIC, USER_ORIGIN, LATER)])
def test_a_collective_that_join_does_not_know(most):
    for shadow in (Phase.JOIN_CONTROL, Phase.BUCKET):
        finding = found(most, (SUM, of(shadow, step=None, shadow=True), LATER))
        cause, remedy = end(finding)
        assert cause.startswith("rank 2 ran out of input")
        assert "all_reduce of the others is not known to it" in cause
        assert "Joinable" in remedy
        assert "after the join" in remedy
        assert "throw_on_early_termination" in remedy


def test_an_evaluation_inside_join():
    control = (METRIC, of(Phase.JOIN_CONTROL), LOOP)
    finding = found(control, (SUM, of(Phase.BUCKET, step=None, bucket=0, shadow=True), LATER))
    assert "one training forward, buffers before it, and one backward" in end(finding)[0]
    assert "model.module" in end(finding)[1]


def test_a_wrapper_that_the_join_does_not_list():
    other = (SUM, of(Phase.BUCKET, wrapper=1, bucket=0), LOOP)
    finding = found(other, (METRIC, of(Phase.JOIN_CONTROL, step=None, shadow=True), LATER))
    assert "does not list the wrappers" in end(finding)[0]
    assert end(finding)[1].startswith("give Join all that communicate in the loop")


def test_join_entered_on_some_ranks_only():
    finding = found((METRIC, of(Phase.JOIN_CONTROL), LOOP), BUCKET)
    assert finding.ranks == (2,)
    assert "rank 2 is not" in end(finding)[0]
    assert "enter the join on every rank" in end(finding)[1]


@pytest.mark.parametrize("signature", [SUM, METRIC])
def test_wrappers_used_in_another_order(signature):
    finding = found(BUCKET, (signature, of(Phase.BUCKET, wrapper=1, bucket=0), LOOP))
    assert finding.ranks == (2,)
    assert "rank 2 used the wrappers in another order" in end(finding)[0]
    assert "in one order on every rank; groups of their own do not help" in end(finding)[1]


@pytest.mark.parametrize("phase", [Phase.PARAMETER_CHECK, Phase.STATE_BROADCAST])
def test_models_that_differ_when_they_are_wrapped(phase):
    larger = BROADCAST._replace(shapes=((9,),))
    finding = found((BROADCAST, of(phase, step=None), LOOP), (larger, of(phase, step=None), LOOP))
    assert finding.ranks == (2,)
    assert end(finding)[0].startswith("what rank 2 wrapped differs from the others'")
    assert "build the same model on every rank" in end(finding)[1]


def test_a_rank_that_wraps_nothing():
    finding = found((BROADCAST, of(Phase.STATE_BROADCAST, step=None), LOOP), (BARRIER, USER_ORIGIN, LATER))
    assert "constructing DistributedDataParallel takes every rank" in end(finding)[0]
    finding = found((BROADCAST, of(Phase.STATE_BROADCAST, step=None), LOOP), BUCKET)
    assert "rank 2 did something else" in end(finding)[0]


def test_other_buckets_are_unused_parameters():
    for odd in ((METRIC, of(Phase.BUCKET, bucket=0), LOOP), (SUM, of(Phase.BUCKET, bucket=1), LOOP)):
        finding = found(BUCKET, odd)
        assert finding.ranks == (2,)
        assert end(finding)[0].startswith("rank 2 filled other buckets")
        assert "find_unused_parameters=True" in end(finding)[1]


@pytest.mark.parametrize(
    "odd",
    [
        (METRIC, USER_ORIGIN, LATER),
        (BROADCAST, of(Phase.BUFFERS, step=5), LOOP),
        (METRIC, of(Phase.BUCKET, step=5, bucket=0), LOOP),
    ],
)
def test_a_bucket_that_a_rank_left_out_of_its_step(odd):
    second = (SUM, of(Phase.BUCKET, bucket=1)._replace(parameters=("a", "b")), LOOP)
    finding = found(second, odd)
    assert finding.ranks == (2,)
    assert end(finding)[0].startswith("rank 2 reduced the buckets before this one and went on without it")
    assert end(finding)[0].endswith("a, b")
    assert "find_unused_parameters=True" in end(finding)[1]


@pytest.mark.parametrize("odd", [(MAP, of(Phase.USED_MAP), LOOP), (BROADCAST, of(Phase.REBUILD, step=None), LOOP)])
def test_a_bucket_that_meets_a_used_map_or_a_rebuild(odd):
    finding = found(BUCKET, odd)
    assert finding.ranks == (2,)
    assert "its options differ (find_unused_parameters" in end(finding)[0]
    assert "find_unused_parameters=True" in end(finding)[1]


def test_a_backward_that_was_left_out():
    ahead = (SUM, of(Phase.BUCKET, bucket=0, step=5), LOOP)
    assert end(found(BUCKET, ahead))[0].startswith("rank 2 made more synchronising forwards")
    for step in (4, 5):  # engines count the step of a forward from its beginning, or from its backward
        finding = found(BUCKET, (BROADCAST, of(Phase.BUFFERS, step=step), LOOP))
        assert finding.ranks == (2,)
        assert end(finding)[0].startswith("rank 2 came to another forward while the others still reduce")
        assert "skip together" in end(finding)[1]


def test_a_communication_hook_on_one_rank():
    finding = found(BUCKET, (SUM._replace(dtype="float16"), of(Phase.BUCKET, bucket=0), LOOP))
    assert finding.ranks == (2,)
    assert "rank 2 reduced the bucket with another dtype" in end(finding)[0]
    assert "same communication hook" in end(finding)[1]


def test_buffers_that_differ():
    finding = found(BUFFERS, (BROADCAST._replace(shapes=((9,),)), of(Phase.BUFFERS), LOOP))
    assert "synchronised buffers in another way" in end(finding)[0]


def test_two_lines_of_the_program_are_a_branch():
    for signature in (BARRIER, METRIC):
        finding = found((SUM, USER_ORIGIN, LOOP), (signature, USER_ORIGIN, LOOP._replace(line=12)))
        assert finding.ranks == (2,)
        assert end(finding)[0].startswith("rank 2 took another branch")
        assert "the same calls in the same order" in end(finding)[1]


def test_one_operation_in_two_functions_may_be_two_tasks():
    finding = found((SUM, USER_ORIGIN, LOOP), (METRIC, USER_ORIGIN, LATER))
    assert finding.ranks == (2,)
    cause, remedy = end(finding)
    assert cause.startswith("rank 2 came to one function's call where the others were in another's: tasks")
    assert "one queue" in remedy
    assert end(found((SUM, USER_ORIGIN, LOOP), (BARRIER, USER_ORIGIN, LATER)))[0].startswith("rank 2 took another")


@pytest.mark.parametrize(("line", "words"), [(8, "rank 2 made barrier before the forward"), (12, "rank 2 left the")])
def test_what_stands_above_the_forward_of_the_loop_was_decided_in_it(line, words):
    cause, remedy = end(found(BUCKET, (BARRIER, USER_ORIGIN, LOOP._replace(line=line))))
    assert cause.startswith(words)
    assert remedy.startswith("let one rank decide and broadcast" if line == 8 else "wrap the loop in")


@pytest.mark.parametrize(
    ("most", "odd", "words"),
    [
        (SUM, METRIC, "pass the same shape"),
        (SUM, SUM._replace(dtype="int32"), "pass the same dtype"),
        (SUM, SUM._replace(reduction="MAX"), "pass the same reduction"),
        (BROADCAST, BROADCAST._replace(root=1), "group_src or group_dst"),
        (SUM._replace(operation="all_gather"), METRIC._replace(operation="all_gather"), "gather the sizes first"),
        (SUM, SUM._replace(shapes=((5, 5),)), "into one shape"),
        (BROADCAST._replace(operation="gather"), BROADCAST._replace(operation="gather", root=1), "or all_gather where"),
        (Signature("new_group", members=(0, 1)), Signature("new_group", members=(0, 2)), "same members"),
    ],
)
def test_one_line_that_passes_other_arguments(most, odd, words):
    finding = found((most, USER_ORIGIN, LOOP), (odd, USER_ORIGIN, LOOP))
    assert finding.ranks == (2,)
    assert "rank 2" in end(finding)[0]
    assert words in end(finding)[1]


def test_who_differs_if_nobody_is_in_the_minority():
    def cause_of(*roots):
        calls = [
            Call(rank, "g", 0, BROADCAST._replace(operation="reduce", root=root), LOOP)
            for rank, root in enumerate(roots)
        ]
        return end(mismatch(calls, disagreement(calls), 7))[0]

    assert cause_of(0, 1).startswith("each rank passed another root")
    assert cause_of(0, 0, 1, 1).startswith("some ranks passed another root")


def test_a_message_that_does_not_fit_its_receive():
    send = Call(0, "g", 0, Signature("send", ((5,),), "float32"), LOOP, peer=1)
    receive = Call(1, "g", 0, Signature("recv", ((3,),), "float32"), LATER, peer=0)
    finding = pair_mismatch(send, receive, pair_disagreement(send, receive), 3)
    assert finding.ranks == (0, 1)
    assert "with the same shape; give messages tags, or send the size first" in end(finding)[1]
