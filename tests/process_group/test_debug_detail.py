"""TORCH_DISTRIBUTED_DEBUG=DETAIL: a mismatch is an exception at the call, in torch's words, and the finding stands."""

import os

import pytest
import torch
import torch.distributed as dist

from ddpsim import Verdict, simulate
from tests.kit.results import codes, returned

OPTIONS = (
    "TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false (default), "
    "pinned_memory=false (default), memory_format=(nullopt))"
)


def caught(call):
    """A program that makes the call on a group of DETAIL, and returns the exception's text and a sum of afterwards."""

    def program(rank):
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        group = dist.new_group()
        text = ""
        try:
            call(rank, group)
        except RuntimeError as error:
            text = str(error).replace(OPTIONS, "OPTIONS")
        afterwards = torch.ones(2)
        dist.all_reduce(afterwards, group=group)
        return text, afterwards.tolist()

    return program


def text_of(own, other, differing, number=0):
    """torch's text on rank 0."""
    first, second = (
        f"CollectiveFingerPrint(SequenceNumber={number}, OpType={name}, TensorShape=[{shape}], TensorDtypes={dtypes}, "
        f"TensorDeviceTypes={' '.join(['OPTIONS'] * len(dtypes.split()))})"
        for name, shape, dtypes in (own, other)
    )
    return (
        f"Detected mismatch between collectives on ranks. Rank 0 is running collective: {first}, but Rank 1 is running "
        f"collective: {second}.Collectives differ in the following aspects:   {differing}"
    )


def gather_into(rank, group):
    dist.all_gather([torch.empty(2 + rank) for _ in range(2)], torch.ones(2 + rank), group=group)


def scattered_sum(rank, group):
    scatter_sum = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)  # from torch 2.13 on
    scatter_sum(torch.ones(2 + rank), torch.ones(4 + 2 * rank), group=group)


def not_waited_for(rank, group):
    dist.all_reduce(torch.ones(2 + rank), group=group, async_op=True)


def broadcast_or_sum(rank, group):
    (dist.all_reduce if rank else lambda t, group: dist.broadcast(t, 0, group=group))(torch.ones(2), group=group)


REAL = {  # as read on gloo, torch 2.13
    "shape": (
        lambda r, g: dist.all_reduce(torch.ones((2, 3) if r else (3, 2)), group=g),
        text_of(("ALLREDUCE", "3, 2", "Float"), ("ALLREDUCE", "2, 3", "Float"), "Tensor Tensor shapes: 3 2vs 2 3"),
    ),
    "dtype": (
        lambda r, g: dist.all_reduce(torch.ones(2, dtype=[torch.bfloat16, torch.int32][r]), group=g),
        text_of(("ALLREDUCE", "2", "BFloat16"), ("ALLREDUCE", "2", "Int"), "Tensor Tensor dtypes: BFloat16vs Int"),
    ),
    "operation": (
        broadcast_or_sum,
        text_of(("BROADCAST", "2", "Float"), ("ALLREDUCE", "2", "Float"), "Op type: BROADCASTvs ALLREDUCE"),
    ),
    "gather": (
        gather_into,
        text_of(("ALLGATHER", "2", "Float"), ("ALLGATHER", "3", "Float"), "Tensor Tensor shapes: 2vs 3"),
    ),
    "scattered sum": (
        scattered_sum,
        text_of(
            ("_REDUCE_SCATTER_BASE", "4", "Float Float"),
            ("_REDUCE_SCATTER_BASE", "6", "Float Float"),
            "Tensor Tensor shapes: 4vs 6",
        ),
    ),
    "async": (
        not_waited_for,
        text_of(("ALLREDUCE", "2", "Float"), ("ALLREDUCE", "3", "Float"), "Tensor Tensor shapes: 2vs 3"),
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_a_program_catches_the_exception_at_the_call_and_goes_on_while_the_finding_stands(name):
    call, text = REAL[name]
    result = simulate(caught(call), 2)
    assert result.returns[0] == (text, [2.0, 2.0])
    assert "Rank 1 is running collective: " in result.returns[1][0].split(", but Rank 0 is")[0]
    assert [(code[:9], ranks) for code, ranks in codes(result)] == [("mismatch.", (0, 1))]
    assert result.verdict is Verdict.FAIL


def test_a_call_without_tensors_is_told_as_it_is_and_not_as_garbage():
    result = simulate(caught(lambda r, g: dist.barrier(g) if r else dist.all_reduce(torch.ones(2), group=g)), 2)
    own = "Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=0OpType=BARRIER)"
    assert all(own in text for text, _ in result.returns)
    assert codes(result) == [("mismatch.operation", (0, 1))]


def test_the_other_rank_that_is_named_is_the_first_that_differs():
    result = simulate(caught(lambda r, g: dist.all_reduce(torch.ones(3 if r == 2 else 2), group=g)), 3)
    assert [text.partition(", but ")[2][:6] for text, _ in result.returns] == ["Rank 2", "Rank 2", "Rank 0"]
    assert codes(result) == [("mismatch.shape", (2,))]


def test_calls_that_agree_raise_nothing_under_detail():
    def program(rank):
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        group, total = dist.new_group(), torch.ones(2)
        work = dist.all_reduce(total, group=group, async_op=True)
        dist.barrier(group)
        work.wait()
        return total.tolist()

    assert returned(program, 2) == ([2.0, 2.0], [2.0, 2.0])


def test_another_reduction_is_not_seen_by_torch_and_ends_the_run():
    result = simulate(
        caught(lambda r, g: dist.all_reduce(torch.ones(2), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][r], g)), 2
    )
    assert result.returns == (None, None)
    assert codes(result) == [("mismatch.reduction", (0, 1))]


def test_without_detail_no_program_gets_an_exception():
    def program(rank):
        try:
            dist.all_reduce(torch.ones(2 + rank))
        except RuntimeError:
            return "caught"

    result = simulate(program, 2)
    assert result.returns == (None, None)
    assert codes(result) == [("mismatch.shape", (0, 1))]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_exception_that_nobody_catches_is_told_by_the_finding(isolation):
    result = simulate(uncaught, 2, isolation=isolation)
    assert codes(result) == [("mismatch.shape", (0, 1))]
    assert result.returns == (None, None)


def uncaught(rank):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.all_reduce(torch.ones(2 + rank), group=dist.new_group())
    return "no exception"


def test_an_exception_of_the_program_after_the_mismatch_is_a_finding_too():
    def program(rank):
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        try:
            dist.all_reduce(torch.ones(2 + rank), group=dist.new_group())
        except RuntimeError:
            raise KeyError("mine") from None

    assert codes(simulate(program, 2)) == [("rank_error", (0, 1)), ("mismatch.shape", (0, 1))]


def test_the_messages_made_before_count_as_torch_counts_them():
    def program(rank):
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        group = dist.new_group()
        if rank < 2:
            (dist.recv if rank else dist.send)(torch.ones(1), 1 - rank, group=group)
        try:
            dist.all_reduce(torch.ones(2 + rank), group=group)
        except RuntimeError as error:
            return str(error).partition("aspects: ")[2].partition("  Tensor")[0]

    assert simulate(program, 3).returns == ("", "", "\t Sequence number: 0vs 1")
