"""Gradients of every kind: dtypes, memory formats, sparse ones, shared and frozen parameters."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from ddpsim.ddp import DistributedDataParallel
from ddpsim.simulator.calls import Phase
from tests.kit.running import calls, check_backwards, run
from tests.kit.training import TINY

WORLDS = pytest.mark.parametrize("world_size", [2, 4])
"""Powers of two: dividing and multiplying by the reciprocal are the same, so gradients are equal to the last bit."""
MODES = pytest.mark.parametrize("as_view", [None, False, True])
GRAPH = pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
DTYPES = [torch.float32, torch.float64, torch.half, torch.bfloat16, torch.complex64]


def of_rank(model, rank):
    return model(rank)


def linear_rows(model, rank):
    return model(torch.ones(2, 4, dtype=torch.float64) + rank).pow(2).sum()


class Product(nn.Module):
    """Works for every dtype."""

    def __init__(self, dtype):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 4).to(dtype))
        self.vector = nn.Parameter(torch.randn(4).to(dtype))

    def forward(self, rank):
        value = (self.matrix * self.vector * (rank + 1)).sum()
        return value.abs() if value.is_complex() else value


def travels_as(dtype):
    """torch sends complex numbers as pairs of real ones."""
    return "float32" if dtype.is_complex else str(dtype).removeprefix("torch.")


@WORLDS
@MODES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("rank_order")
def test_dtypes(dtype, as_view, world_size):
    options = {"gradient_as_bucket_view": as_view}
    result = check_backwards(partial(Product, dtype), of_rank, options=options, world_size=world_size)
    assert result.returns[0][0].module.matrix.grad.dtype is dtype
    assert {call.signature.dtype for call in calls(result, Phase.BUCKET)} == {travels_as(dtype)}


@MODES
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format], ids=str)
def test_convolutions(memory_format, as_view):
    def build():
        layers = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Conv2d(4, 3, 1)).double()
        return layers.to(memory_format=memory_format)

    def loss(module, rank):
        image = torch.linspace(-1, 1 + rank, 2 * 3 * 4 * 4, dtype=torch.float64).view(2, 3, 4, 4)
        return module(image.to(memory_format=memory_format)).pow(2).sum()

    result = check_backwards(build, loss, options={"gradient_as_bucket_view": as_view})
    weight = result.returns[0][0].module[0].weight
    assert weight.is_contiguous(memory_format=memory_format)
    assert weight.grad.stride() == weight.stride()
    if as_view is not False:
        assert weight.grad._base is not None


class OddlyLaidOut(nn.Module):
    """A transposed parameter, one with gaps, a scalar and an empty one."""

    def __init__(self):
        super().__init__()
        self.transposed = nn.Parameter(torch.randn(4, 3, dtype=torch.float64).t())
        self.with_gaps = nn.Parameter(torch.randn(4, 6, dtype=torch.float64)[:, ::2])
        self.scalar = nn.Parameter(torch.randn((), dtype=torch.float64))
        self.empty = nn.Parameter(torch.randn(0, 3, dtype=torch.float64))

    def forward(self, rank):
        product = (self.transposed.T @ self.transposed).sum() + self.with_gaps.pow(rank + 2).sum()
        return product * self.scalar + self.empty.sum()


@MODES
@pytest.mark.parametrize("cap_mb", [25, TINY])
def test_odd_layouts(as_view, cap_mb):
    result = check_backwards(
        OddlyLaidOut, of_rank, options={"gradient_as_bucket_view": as_view, "bucket_cap_mb": cap_mb}
    )
    module = result.returns[0][0].module
    assert module.transposed.grad.stride() == module.transposed.stride() == (1, 3)
    assert module.with_gaps.grad.shape == (4, 3)
    assert module.scalar.grad.shape == ()


class Words(nn.Module):
    """An embedding with sparse gradients, and a dense layer on top; without words, the layer alone."""

    def __init__(self, embed=nn.Embedding):
        super().__init__()
        self.embed = embed(7, 4, sparse=True, dtype=torch.float64)
        self.dense = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, words):
        return self.dense(self.embed(words) if words.numel() else torch.ones(2, 4, dtype=torch.float64))


WORDS = (
    torch.tensor([[0, 1], [1, 1]]),
    torch.tensor([[1, 6], [2, 3]]),
    torch.tensor([[0, 0], [0, 0]]),
    torch.tensor([[4, 5], [5, 4]]),
)
"""By rank: words in common, repeated ones, and different numbers of distinct ones. The word 6 is one rank's only."""


def read(module, rank):
    return module(WORDS[rank]).pow(2).sum()


@WORLDS
@MODES
@pytest.mark.parametrize("embed", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients(embed, as_view, world_size):
    # A word that comes several times has its rows added up in another order.
    how = {"world_size": world_size, "tolerance": 1e-14}
    result = check_backwards(partial(Words, embed), read, options={"gradient_as_bucket_view": as_view}, **how)
    gradient = result.returns[0][0].module.embed.weight.grad
    assert gradient.is_sparse
    used = sorted(set(torch.cat([words.flatten() for words in WORDS[:world_size]]).tolist()))
    assert gradient.coalesce().indices().flatten().tolist() == used  # no more rows than somebody used


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_sparse_gradients_in_a_searched_or_static_graph(options):
    check_backwards(Words, read, options=options)


def test_a_sparse_gradient_is_a_bucket_of_its_own():
    def program(rank):
        return DistributedDataParallel(Words()).reducer.bucket_plan

    assert run(program, 2).returns[0] == (("embed.weight",), ("dense.bias", "dense.weight"))


def test_an_embedding_that_a_rank_does_not_use():
    def loss(module, rank):
        return module(WORDS[1] if rank == 1 else torch.tensor([])).pow(2).sum()

    check_backwards(Words, loss, options={"find_unused_parameters": True})


def test_a_sparse_gradient_where_a_dense_one_was_expected():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.ones(7, 4))

        def forward(self, words):
            return nn.functional.embedding(words, self.table, sparse=True)

    def program(rank):
        model = DistributedDataParallel(Functional())
        with pytest.raises(ValueError, match=r"^table got a sparse gradient, expected a dense one: "):
            model(WORDS[rank]).sum().backward()

    run(program, 2)


class Tied(nn.Module):
    """An embedding whose table is the output layer's, too."""

    def __init__(self, sparse):
        super().__init__()
        self.embed = nn.Embedding(7, 4, sparse=sparse, dtype=torch.float64)
        self.output = nn.Linear(4, 7, bias=False, dtype=torch.float64)
        self.output.weight = self.embed.weight

    def forward(self, words):
        return self.output(self.embed(words))


@WORLDS
@MODES
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.usefixtures("rank_order")
def test_a_shared_parameter(sparse, as_view, world_size):
    result = check_backwards(
        partial(Tied, sparse), read, options={"gradient_as_bucket_view": as_view}, world_size=world_size
    )
    if not sparse:  # which travels in several calls
        assert len(calls(result, Phase.BUCKET)) == 2  # two steps, and one gradient in each


@GRAPH
def test_frozen_parameters(options):
    def build():
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)).double()
        module[1].requires_grad_(False)
        return module

    result = check_backwards(build, linear_rows, options=options)
    assert all(p.grad is None for p in result.returns[0][0].module[1].parameters())
    assert all("1." not in name for call in calls(result, Phase.BUCKET) for name in call.origin.parameters)


def test_frozen_parameters_are_rank_0s_too():
    def program(rank):
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        module[0].requires_grad_(False)
        module[0].weight.fill_(rank + 1)
        DistributedDataParallel(module)
        return module[0].weight.tolist()

    assert run(program, 3).returns == ([[1.0, 1.0]] * 2,) * 3
