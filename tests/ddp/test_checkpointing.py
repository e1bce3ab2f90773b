"""Activation checkpointing of both kinds, with everything the engine may know about the graph."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ddpsim.ddp import DistributedDataParallel, UsageError
from tests.kit.running import TINY, assert_equal, average, counts, gradients, run

GRAPHS = {
    "all used": {},
    "searched": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "static and searched": {"static_graph": True, "find_unused_parameters": True},
}
GRAPH = pytest.mark.parametrize("options", GRAPHS.values(), ids=GRAPHS)
KINDS = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
CAPS = pytest.mark.parametrize("cap_mb", [25, TINY])
STEPS = 3


class Blocks(nn.Module):
    """Four layers; some of them in checkpoints."""

    def __init__(self, checkpointed, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(3, 3, dtype=torch.float64) for _ in range(4)])
        self.checkpointed = checkpointed
        self.reentrant = reentrant

    def run_block(self, number, value):
        return self.blocks[number](value).tanh()

    def forward(self, rank):
        value = torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3).requires_grad_()
        for number in range(4):
            if number in self.checkpointed:
                value = checkpoint(self.run_block, number, value, use_reentrant=self.reentrant)
            else:
                value = self.run_block(number, value)
        return value


class Unused(Blocks):
    """One layer more, which only the ranks named use, after the others; in a checkpoint."""

    users = (0,)

    def __init__(self, checkpointed, reentrant):
        super().__init__(checkpointed, reentrant)
        self.extra = nn.Linear(3, 3, dtype=torch.float64)
        self.never = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, rank):
        value = super().forward(rank)
        if rank in self.users:
            value = value + checkpoint(self.extra, value, use_reentrant=self.reentrant)
        return value


def trained(rank, build, options):
    module = build()
    model = DistributedDataParallel(module, **options)
    for _ in range(STEPS):
        module.zero_grad()
        model(rank).pow(2).sum().backward()
    return gradients(module)


def check(build, options, world_size=2):
    result = run(trained, world_size, build, options)
    with torch.random.fork_rng():
        wanted = average(build, [lambda module, rank=rank: module(rank).pow(2).sum() for rank in range(world_size)])
    for found in result.returns:
        assert_equal(found, wanted)
    return result


@CAPS
@KINDS
@GRAPH
@pytest.mark.parametrize("checkpointed", [(0,), (3,), (1, 2), (0, 1, 2, 3)], ids=str)
def test_blocks(checkpointed, options, reentrant, cap_mb):
    result = check(partial(Blocks, checkpointed, reentrant), options | {"bucket_cap_mb": cap_mb})
    assert counts(result)["rebuild"] == 1


@CAPS
@KINDS
@pytest.mark.parametrize("options", [GRAPHS["searched"], GRAPHS["static"]], ids=["searched", "static"])
@pytest.mark.parametrize("checkpointed", [(), (0,), (3,), (0, 1, 2, 3)], ids=str)
def test_with_unused_parameters(checkpointed, options, reentrant, cap_mb):
    check(partial(Unused, checkpointed, reentrant), options | {"bucket_cap_mb": cap_mb})


@KINDS
@GRAPH
def test_inside_each_other(options, reentrant):
    class Nested(Blocks):
        def forward(self, rank):
            def inner(value):
                return self.run_block(2, checkpoint(partial(self.run_block, 1), value, use_reentrant=reentrant))

            value = self.run_block(0, torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3))
            return self.run_block(3, checkpoint(inner, value, use_reentrant=reentrant))

    check(partial(Nested, (), reentrant), options)


@KINDS
@GRAPH
def test_checkpoint_sequential(options, reentrant):
    class Sequence(Blocks):
        def forward(self, rank):
            value = torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3).requires_grad_()
            return checkpoint_sequential(list(self.blocks), 2, value, use_reentrant=reentrant)

    check(partial(Sequence, (), reentrant), options)


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@KINDS
def test_ranks_that_checkpoint_different_layers(reentrant, policy):
    class Own(Blocks):
        def forward(self, rank):
            self.checkpointed = (rank, rank + 1)
            return super().forward(rank)

    result = run(trained, 3, partial(Own, (), reentrant), {"find_unused_parameters": True}, policy=policy, seed=2)
    with torch.random.fork_rng():
        wanted = average(partial(Own, (), False), [lambda m, rank=rank: m(rank).pow(2).sum() for rank in range(3)])
    for found in result.returns:
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-15)


# One layer in two checkpoints.


class Twice(Blocks):
    def forward(self, rank):
        value = self.run_block(0, torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3))
        for _ in range(2):
            value = checkpoint(partial(self.run_block, 1), value, use_reentrant=self.reentrant)
        return self.run_block(3, self.run_block(2, value))


@CAPS
@GRAPH
def test_a_layer_in_two_checkpoints(options, cap_mb):
    check(partial(Twice, (), False), options | {"bucket_cap_mb": cap_mb})


@CAPS
@pytest.mark.parametrize("options", [GRAPHS["static"], GRAPHS["static and searched"]], ids=str)
def test_a_layer_in_two_reentrant_checkpoints_of_a_static_graph(options, cap_mb):
    check(partial(Twice, (), True), options | {"bucket_cap_mb": cap_mb})


@pytest.mark.parametrize("options", [GRAPHS["all used"], GRAPHS["searched"]], ids=["all used", "searched"])
def test_a_layer_in_two_reentrant_checkpoints_is_named_otherwise(options):
    # Its first gradient would travel without the second: torch says "marked a variable ready only once".
    def program(rank):
        model = DistributedDataParallel(Twice((), True), **options)
        with pytest.raises(
            UsageError, match=r"^blocks\.1\.(bias|weight) got (more gradients|a gradient) .*static_graph=True"
        ):
            model(rank).sum().backward()

    run(program, 2)
