"""The transport `memory` gives each reduction the bits that gloo gives it; gloo's own groups are the judge."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.simulator.transport.memory import reduce_tensors
from tests.kit.results import returned

reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1 / 3, -65504.0)


def values(dtype: torch.dtype, count: int, seed: int) -> Tensor:
    """Numbers whose sum depends on the order, a third of them special; of integers, the whole range."""
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-(2**62), 2**62, (count,), generator=generator).to(dtype)
    special = torch.tensor(SPECIAL, dtype=torch.float64)[torch.randint(len(SPECIAL), (count,), generator=generator)]
    drawn = torch.randn(count, generator=generator, dtype=torch.float64) * 10 ** (seed % 4)
    return torch.where(torch.rand(count, generator=generator) < 0.3, special, drawn).to(dtype)


def reductions(rank: int, size: int, op: dist.ReduceOp, dtype: torch.dtype, count: int) -> Iterator[Tensor]:
    """The result of each kind of reduction on this rank."""
    tensor = values(dtype, count, rank)
    dist.all_reduce(tensor, op)
    yield tensor
    first, second = values(dtype, count, rank + 10), values(dtype, count + 1, rank + 20)
    dist.all_reduce_coalesced([first, second], op)
    yield torch.cat([first, second])
    tensor = values(dtype, count, rank + 30)
    dist.reduce(tensor, count % size, op)
    yield tensor  # gloo leaves what it passed on in those of other ranks
    parts = [values(dtype, count, rank * size + other) for other in range(size)]
    output = parts[0].new_empty(count)
    dist.reduce_scatter(output, parts, op)
    yield output.clone()
    reduce_scatter_single(output, torch.cat(parts), op)
    yield output


def bits(tensor: Tensor) -> list[str]:
    """The elements as text that tells -0.0 from 0.0, and not one NaN from another."""
    return [str(element) for element in tensor.tolist()]


@pytest.mark.filterwarnings("ignore:.*all_reduce_coalesced:FutureWarning")
@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_reduction_equals_gloo(size):
    def program(rank):
        rows = itertools.product(["SUM", "PRODUCT", "MIN", "MAX", "AVG"], FLOATS, (1, 2, 2 * size + 1, 23))
        whole = itertools.product(["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"], INTEGERS, (5,))
        return {
            (name, dtype, count, kind): bits(result)
            for name, dtype, count in (*rows, *whole)
            for kind, result in enumerate(reductions(rank, size, getattr(dist.ReduceOp, name), dtype, count))
        }

    in_memory, on_gloo = (returned(program, size, transport=transport) for transport in ("memory", "gloo"))
    for mine, real in zip(in_memory, on_gloo, strict=True):
        assert [(row, mine[row], real[row]) for row in real if mine[row] != real[row]] == []


@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX"])
def test_all_triples_of_special_values_equal_gloo_in_every_chunk(name):
    triples = list(itertools.product(SPECIAL, repeat=3)) * 3  # each of the three chunks has all of them

    def program(rank):
        found = []
        for dtype in FLOATS:
            tensor = torch.tensor([triple[rank] for triple in triples], dtype=dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
            found.append(bits(tensor))
        return found

    assert returned(program, 3, transport="memory") == returned(program, 3, transport="gloo")


@pytest.mark.usefixtures("virtual_gpus")
def test_ranks_as_processes_have_the_arithmetic_of_the_backend_of_each_group():
    def program(rank):
        found = []
        for device, backend in (("cpu", "gloo"), (f"cuda:{rank}", "nccl")):
            tensor = torch.tensor([float("nan"), 1.0] if rank == 0 else [2.0, float("nan")], device=device)
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=dist.new_group(backend=backend))
            found.append(bits(tensor.cpu()))
        return found

    # gloo: both elements lie in the chunk that ends on rank 0, which keeps its own beside a NaN, and its own NaN.
    assert returned(program, 2, isolation="process", gpus=2) == ([["nan", "1.0"], ["2.0", "1.0"]],) * 2


@pytest.mark.parametrize("count", [40_000, 800_001, 1_100_000])
def test_large_tensors_are_cut_as_gloo_cuts_them(count):
    def program(rank):
        tensor = values(torch.float32, count, rank).nan_to_num(1.0)
        dist.all_reduce(tensor)
        return tensor

    for mine, real in zip(*(returned(program, 3, transport=t) for t in ("memory", "gloo")), strict=True):
        assert torch.equal(mine, real)


def test_a_chunk_begins_at_the_rank_before_it():
    a, b, c = (torch.tensor([1e8, 1e8, 1.0, 1.0, -1e8, -1e8]), torch.ones(6), torch.full((6,), -1e8))
    a[4:], c[4:] = 1.0, 1e8
    chunks = [(a[:2] + (b[:2] + c[:2])), (b[2:4] + (c[2:4] + a[2:4])), (c[4:] + (a[4:] + b[4:]))]
    assert torch.equal(reduce_tensors([a, b, c], "SUM"), torch.cat(chunks))
    assert reduce_tensors([torch.tensor([float("nan")]), torch.ones(1)], "MAX").isnan().all()
    assert reduce_tensors([torch.ones(1), torch.tensor([float("nan")])], "MAX").tolist() == [1.0]


def test_nccl_ignores_nan_in_max_and_multiplies_before_it_adds():
    nan, largest = torch.tensor([float("nan")]), torch.tensor([torch.finfo(torch.float32).max])
    for pair in ([nan, torch.ones(1)], [torch.ones(1), nan]):
        assert reduce_tensors(pair, "MAX", on_nccl=True).tolist() == [1.0]
        assert reduce_tensors(pair, "MIN", on_nccl=True).tolist() == [1.0]
    assert reduce_tensors([nan, nan], "MAX", on_nccl=True).isnan().all()
    assert torch.equal(reduce_tensors([largest, largest], "AVG", on_nccl=True), largest)
    assert reduce_tensors([largest, largest], "AVG").isinf().all()
    thirds = [torch.tensor([value], dtype=torch.float16) for value in (1.0, 2.0, 4.0)]
    third = torch.tensor(1 / 3, dtype=torch.float16)
    expected = thirds[0] * third + thirds[1] * third + thirds[2] * third
    assert torch.equal(reduce_tensors(thirds, "AVG", on_nccl=True), expected)
