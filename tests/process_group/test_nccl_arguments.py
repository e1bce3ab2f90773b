"""What a group on NCCL takes and refuses, beside gloo (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import full, ones, zeros

from ddpsim import Code, Verdict, simulate
from ddpsim.simulator.process_group.argument_rules import argument_rules_of
from ddpsim.simulator.process_group.gloo_arguments import GlooRules
from ddpsim.simulator.process_group.group import rules_for
from ddpsim.simulator.process_group.nccl_arguments import NcclRules
from tests.kit.results import returned

pytestmark = pytest.mark.filterwarnings("ignore:.*(is|be) deprecated:FutureWarning")  # names before torch 2.13

SIZE = 2


def on(backend, call):
    """What each rank comes to; the values are rank + 1."""

    def program(rank):
        group = dist.new_group(backend=backend)
        try:
            return call(group, rank, lambda *shape, **options: full(shape, rank + 1.0, **options))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return returned(program, SIZE)


def lists(tensors):
    return [tensor.tolist() for tensor in tensors]


# Shapes: NCCL counts elements.


def all_gather_of_a_number(group, rank, own):
    outputs = [zeros(1) for _ in range(SIZE)]
    dist.all_gather(outputs, own(), group=group)
    return lists(outputs)


def uneven_all_gather(group, rank, own):
    outputs = [zeros(1), zeros(2, 2)]
    dist.all_gather(outputs, own(1) if rank == 0 else own(4), group=group)
    return lists(outputs)


def stacked_all_gather(group, rank, own):
    output = zeros(3 * SIZE)
    dist.all_gather_into_tensor(output, own(3, 1), group=group)
    return output.tolist()


def stacked_reduce_scatter(group, rank, own):
    output = zeros(3)
    dist.reduce_scatter_tensor(output, own(SIZE, 3), group=group)
    return output.tolist()


def reduce_scatter_to_a_number(group, rank, own):
    output = zeros(())
    dist.reduce_scatter_tensor(output, own(SIZE), group=group)
    return output.tolist()


def reduce_scatter_of_other_shapes(group, rank, own):
    output = zeros(4)
    dist.reduce_scatter(output, [own(2, 2) for _ in range(SIZE)], group=group)
    return output.tolist()


def uneven_all_to_all(group, rank, own):
    outputs = [zeros(1 + rank), zeros(2 + rank)]
    dist.all_to_all(outputs, [own(rank + 1), own(rank + 2)], group=group)
    return lists(outputs)


def each_rank_has_its_factor(group, rank, own):
    output = own(2)
    dist.all_reduce(output, dist._make_nccl_premul_sum(rank + 2.0), group=group)
    return output.tolist()


def message_that_is_not_contiguous(group, rank, own):
    tensor = own(3, 2).t()
    if rank == 0:
        dist.send(tensor, 1, group=group)
    else:
        dist.recv(tensor, 0, group=group)
    return tensor.tolist()


def coalesced(tensor):
    def reduce(group, rank, own):
        reduced = [tensor(own)]
        dist.all_reduce_coalesced(reduced, group=group)
        return lists(reduced)

    return reduce


ONLY_ON_NCCL = [
    (all_gather_of_a_number, [[[1.0], [2.0]]] * 2),
    (uneven_all_gather, [[[1.0], [[2.0, 2.0], [2.0, 2.0]]]] * 2),
    (stacked_all_gather, [[1.0] * 3 + [2.0] * 3] * 2),
    (stacked_reduce_scatter, [[3.0] * 3] * 2),
    (reduce_scatter_to_a_number, [3.0, 3.0]),
    (reduce_scatter_of_other_shapes, [[3.0] * 4] * 2),
    (uneven_all_to_all, [[[1.0], [2.0, 2.0]], [[1.0, 1.0], [2.0, 2.0, 2.0]]]),
    (each_rank_has_its_factor, [[2.0 + 6.0] * 2] * 2),
    (message_that_is_not_contiguous, [[[1.0] * 3] * 2] * 2),
]


@pytest.mark.parametrize(("call", "values"), ONLY_ON_NCCL)
def test_what_nccl_takes_and_gloo_refuses(call, values):
    assert list(on("nccl", call)) == values
    assert any("Error" in str(said) for said in on("gloo", call))


def test_what_is_coalesced_may_be_transposed():
    assert list(on("nccl", coalesced(lambda own: own(2, 3).t()))) == [[[[3.0] * 2] * 3]] * SIZE


def test_uneven_parts_have_to_be_as_long_as_their_ranks_say():
    def program(rank):
        group = dist.new_group(backend="nccl")
        lengths = [2, 3] if rank == 0 else [2, 4]
        dist.all_gather([zeros(length) for length in lengths], ones(lengths[rank]), group=group)

    (finding,) = simulate(program, SIZE).findings
    assert finding.code is Code.MISMATCH_SHAPE
    assert "float32[2], [3]" in str(finding)


# What NCCL refuses.


def reduced(tensor, op=dist.ReduceOp.SUM):
    return lambda group, rank, own: dist.all_reduce(tensor(own), op, group=group)


REFUSED = {
    "coalesced": (coalesced(lambda own: own(4, 4)[:, 1]), "ValueError: Tensors must be non-overlapping and dense"),
    "transposed": (reduced(lambda own: own(2, 3).t()), "ValueError: Tensors must be contiguous"),
    "sliced": (reduced(lambda own: own(4, 4)[:, 1]), "ValueError: Tensors must be contiguous"),
    "broadcast": (
        lambda group, rank, own: dist.broadcast(own(2, 3).t(), 0, group=group),
        "ValueError: Tensors must be contiguous",
    ),
    "gathered": (
        lambda group, rank, own: dist.all_gather([zeros(3, 2)] * SIZE, own(2, 3).t(), group=group),
        "ValueError: Tensors must be contiguous",
    ),
    "bitwise": (
        reduced(lambda own: own(2).int(), dist.ReduceOp.BAND),
        "ValueError: Cannot use ReduceOp.BAND with NCCL",
    ),
    "average of bools": (
        reduced(lambda own: own(2).bool(), dist.ReduceOp.AVG),
        "TypeError: Cannot use ReduceOp.AVG with Boolean inputs",
    ),
    "short": (
        reduced(lambda own: own(2).short()),
        "TypeError: Input tensor data type is not supported for NCCL process group: Short",
    ),
    "sparse": (
        reduced(lambda own: own(2, 2).to_sparse()),
        "RuntimeError: NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead.",
    ),
    "from anybody": (
        lambda group, rank, own: dist.recv(own(2), group=group),
        "NotImplementedError: ProcessGroupNCCL does not support recvAnysource",
    ),
    "too few elements": (
        lambda group, rank, own: dist.all_gather_into_tensor(zeros(5), own(3), group=group),
        "ValueError: output tensor size must be equal to world_size times input tensor size",
    ),
    "other elements": (
        lambda group, rank, own: dist.all_gather([zeros(2)] * SIZE, own(3), group=group),
        "ValueError: ProcessGroupNCCL::allgather: the outputs have 2 elements each, the input has 3, expected as many "
        "(NCCL does not notice, and goes beyond them)",
    ),
    "a transposed output": (
        lambda group, rank, own: dist.all_to_all_single(zeros(2, 2).t(), own(2, 2), group=group),
        "ValueError: Tensors must be contiguous",
    ),
    "no rows": (
        lambda group, rank, own: dist.all_to_all_single(zeros(()), own(), group=group),
        "ValueError: ProcessGroupNCCL::alltoall_base: a tensor without dimensions has no rows to split",
    ),
    "a list too short": (
        lambda group, rank, own: dist.all_to_all([zeros(2)], [own(2)], group=group),
        "ValueError: ProcessGroupNCCL::alltoall: the input list has length 1, expected 2, the size of the group (NCCL "
        "does not notice, and goes beyond it)",
    ),
    "own part too long": (
        lambda group, rank, own: dist.reduce_scatter(zeros(9), [own(1), own(2)], group=group),
        "ValueError: Tensor input and output of _reduce_oop must have the same number of elements ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nccl_refuses(name):
    call, text = REFUSED[name]
    assert list(on("nccl", call)) == [text] * SIZE


def test_the_root_of_a_gather_is_told_by_nccls_name():
    def call(group, rank, own):
        dist.gather(own(), [zeros(1)] * SIZE if rank == 0 else None, group=group)

    result = simulate(lambda rank: call(dist.new_group(backend="nccl"), rank, lambda: ones(())), SIZE)
    assert result.verdict is Verdict.FAIL
    assert "ProcessGroupNCCL::gather: invalid tensor size at index 0 (expected (), got (1))" in str(result)


def test_memory_in_another_order_that_torch_suggests_is_taken():
    def call(group, rank, own):
        tensor = own(2, 3, 4, 4).to(memory_format=torch.channels_last)
        dist.all_reduce(tensor, group=group)
        return tensor.sum().item()

    assert list(on("nccl", call)) == [3.0 * 96] * SIZE


# Numbers.


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_of_eight_bits(dtype):
    def call(group, rank, own):
        total, outputs = own(2).to(dtype), [zeros(2).to(dtype) for _ in range(SIZE)]
        dist.all_gather(outputs, total, group=group)
        dist.all_reduce(total, group=group)
        return total.float().tolist(), [output.float().tolist() for output in outputs]

    assert list(on("nccl", call)) == [([3.0, 3.0], [[1.0, 1.0], [2.0, 2.0]])] * SIZE


def test_averages_of_whole_numbers():
    def call(group, rank, own):
        total = own(1).long()
        dist.all_reduce(total, dist.ReduceOp.AVG, group=group)
        return total.item()

    assert list(on("nccl", call)) == [1, 1]
    assert all("result type Float can't be cast" in said for said in on("gloo", call))


# Whose rules hold.


def test_a_group_on_both_goes_by_where_the_tensor_is():
    on_cpu, on_gpu = ones(1), SimpleNamespace(is_cuda=True)
    for backend, tensor, kind in (
        ("cpu:gloo,cuda:nccl", on_cpu, GlooRules),
        ("cpu:gloo,cuda:nccl", on_gpu, NcclRules),
        ("nccl", on_cpu, NcclRules),
        ("cuda:nccl", on_cpu, NcclRules),
        ("gloo", on_gpu, GlooRules),
        ("undefined", on_cpu, GlooRules),
    ):
        assert type(rules_for(argument_rules_of(backend), tensor)) is kind
