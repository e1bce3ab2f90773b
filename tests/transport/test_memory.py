"""Movement in memory: exact, in rank order, whatever the schedule, the layout and the aliasing of the tensors."""

import functools

import pytest
import torch
import torch.distributed as dist

from ddpsim import simulate
from ddpsim.simulator.transport.memory import move_payloads, reduce_tensors
from ddpsim.simulator.transport.payload import Payload
from tests.kit.results import codes, returned

# torch 2.13 renamed them and warns at the old names; 2.11 has only those.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def fractions(rank, count=1000, dtype=torch.float32):
    """Numbers whose sum depends on the order of the additions."""
    return torch.sin(torch.arange(count, dtype=torch.float64) * (rank + 0.3)).to(dtype) * 10.0**rank


ORDERED = {
    "all_reduce": lambda tensor, rank: dist.all_reduce(tensor),
    "all_reduce-async": lambda tensor, rank: dist.all_reduce(tensor, async_op=True).wait(),
    "reduce": lambda tensor, rank: dist.reduce(tensor, 0),
    "reduce_scatter": lambda tensor, rank: dist.reduce_scatter(tensor[:250], [tensor[i::4].clone() for i in range(4)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ORDERED)
def test_sums_are_bit_identical_under_all_schedules(name, dtype):
    def program(rank):
        tensor = fractions(rank, dtype=dtype)
        ORDERED[name](tensor, rank)
        return tensor

    runs = [returned(program, 4, policy=policy, seed=seed) for policy in ("round_robin", "random") for seed in range(4)]
    in_order = functools.reduce(torch.add, [fractions(rank, dtype=dtype) for rank in range(4)])
    backwards = functools.reduce(torch.add, [fractions(rank, dtype=dtype) for rank in (3, 2, 1, 0)])
    assert not torch.equal(in_order, backwards)
    for returns in runs:
        assert all(torch.equal(mine, first) for mine, first in zip(returns, runs[0], strict=True))


def payloads(inputs, outputs=None):
    return [Payload([x], [x if outputs is None else outputs[rank]]) for rank, x in enumerate(inputs)]


def test_each_rank_premultiplies_by_its_own_factor():
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    assert reduce_tensors(tensors, "PREMUL_SUM", [2.0, torch.tensor(0.5)]).tolist() == [7.0, 14.0]
    halves = [tensor.to(torch.float16) for tensor in tensors]
    assert reduce_tensors(halves, "PREMUL_SUM", [2.0, 0.5]).dtype is torch.float16


def test_equal_counts_in_other_shapes_pair_up_in_memory_order():
    tensors = [torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2), torch.arange(6.0)]
    move_payloads("all_reduce", payloads(tensors), "MAX", None)
    move_payloads("all_reduce", payloads(tensors), "SUM", None)
    assert [tensor.reshape(-1).tolist() for tensor in tensors] == [[0.0, 3.0, 6.0, 9.0, 12.0, 15.0]] * 3
    assert [tuple(tensor.shape) for tensor in tensors] == [(2, 3), (3, 2), (6,)]
    source, target = torch.arange(4.0), torch.zeros(2, 2)
    move_payloads("send", [Payload([source], ()), Payload((), [target])], None, None)
    assert target.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_outputs_may_be_the_inputs():
    def program(rank):
        whole = torch.zeros(3)
        whole[rank] = rank + 1
        all_gather_single(whole, whole[rank : rank + 1])
        parts = list(torch.tensor([10.0 * rank, 10.0 * rank + 1, 10.0 * rank + 2]).split(1))
        dist.all_to_all(parts, parts)
        scattered = list(torch.arange(3.0).split(1))
        dist.scatter(scattered[1], scattered if rank == 0 else None)
        reduced_into = torch.arange(3.0) + rank
        reduce_scatter_single(reduced_into[rank : rank + 1], reduced_into)
        gathered = [torch.full((1,), float(rank + 1)) for _ in range(3)]
        dist.gather(gathered[2], gathered if rank == 0 else None)
        return (
            whole.tolist(),
            torch.cat(parts).tolist(),
            scattered[1].item(),
            reduced_into[rank].item(),
            torch.cat(gathered).tolist() if rank == 0 else None,
        )

    returns = returned(program, 3)
    assert [value[0] for value in returns] == [[1.0, 2.0, 3.0]] * 3
    assert [value[1] for value in returns] == [[0.0, 10.0, 20.0], [1.0, 11.0, 21.0], [2.0, 12.0, 22.0]]
    assert [value[2] for value in returns] == [0.0, 1.0, 2.0]
    assert [value[3] for value in returns] == [3.0, 6.0, 9.0]
    assert returns[0][4] == [1.0, 2.0, 3.0]


def test_one_tensor_may_come_from_several_ranks():
    shared = torch.ones(2)
    move_payloads("all_reduce", payloads([shared, shared]), "SUM", None)
    assert shared.tolist() == [2.0, 2.0]


def test_tensors_are_written_below_autograd():
    def program(rank):
        leaf = torch.full((2,), rank + 1.0, requires_grad=True)
        inner = leaf * 2
        versions = leaf._version, inner._version
        dist.all_reduce(leaf)
        dist.broadcast(inner, 0)
        (leaf * inner).sum().backward()
        return (leaf._version, inner._version) == versions, leaf.tolist(), inner.tolist(), leaf.grad.tolist()

    # The product is leaf * inner with leaf = 6 and inner = 2, and inner still depends on leaf with factor 2.
    assert returned(program, 3) == ((True, [6.0, 6.0], [2.0, 2.0], [14.0, 14.0]),) * 3


def test_modes_of_the_rank_that_comes_last_do_not_reach_the_others():
    def program(rank):
        tensor = torch.full((2,), rank + 1.0)
        if rank == 0:
            with torch.inference_mode():
                mine = torch.full((2,), 1.0)
                dist.all_reduce(mine)
                return mine.tolist()
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"), torch.no_grad():
            dist.all_reduce(tensor)
        return tensor.tolist()

    for seed in range(6):
        assert returned(program, 3, policy="random", seed=seed) == ([6.0, 6.0],) * 3


def test_a_sparse_and_a_dense_tensor_do_not_meet():
    def program(rank):
        tensor = torch.ones(4)
        dist.all_reduce(tensor.to_sparse() if rank == 1 else tensor)

    result = simulate(program, 3)
    assert codes(result) == [("mismatch.dtype", (1,))]


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32])
def test_sparse_tensors_of_bytes_are_added_up(dtype):
    def program(rank):
        tensor = torch.ones(2, dtype=dtype).to_sparse()
        dist.all_reduce(tensor)
        return tensor.to_dense().tolist()

    assert returned(program, 2) == ([2, 2],) * 2


@pytest.mark.parametrize("transport", ["memory", "gloo"])
def test_a_sum_of_bytes_that_wraps_around_is_noted_once(transport):
    def program(rank, dtype, value, op=dist.ReduceOp.SUM):
        for _ in range(2):
            hits = torch.tensor([[1, value]], dtype=dtype)
            dist.all_reduce(hits, op)
        dist.reduce(hits, 0, op)
        return hits.tolist()

    def notes(*args):
        return simulate(program, 2, args=args, transport=transport).notes

    line = program.__code__.co_firstlineno + 3
    what = "(test_memory.py:{}) left the range of {} and wrapped around: add up in a wider type"
    assert notes(torch.uint8, 31) == notes(torch.uint8, 200, dist.ReduceOp.MAX) == notes(torch.int32, 2**31 - 1) == ()
    assert notes(torch.uint8, 200)[0] == f"the SUM of all_reduce #0 {what.format(line, 'uint8')}"
    assert notes(torch.int8, -65)[0] == f"the SUM of all_reduce #0 {what.format(line, 'int8')}"
    assert notes(torch.uint8, 64) == (f"the SUM of reduce #2 {what.format(line + 1, 'uint8')}",)
