"""Activation checkpointing of both kinds, with everything the engine may know about the graph."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ddpsim.ddp import DistributedDataParallel, UsageError
from tests.kit.networks import Checkpointed
from tests.kit.running import check_backwards, counts, run
from tests.kit.training import TINY, ramp
from tests.tiers import sweep

GRAPHS = {
    "all used": {},
    "searched": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "static and searched": {"static_graph": True, "find_unused_parameters": True},
}
GRAPH = pytest.mark.parametrize("options", GRAPHS.values(), ids=GRAPHS)
KINDS = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
CAPS = pytest.mark.parametrize("cap_mb", sweep([25, TINY], lambda cap: cap == TINY))


class Blocks(nn.Module):
    """Four layers; some of them in checkpoints."""

    def __init__(self, checkpointed=(), reentrant=False):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3, dtype=torch.float64) for _ in range(4)])
        self.checkpointed, self.reentrant = checkpointed, reentrant

    def run_block(self, number, value):
        return self.blocks[number](value).tanh()

    def in_checkpoint(self, function, value):
        return checkpoint(function, value, use_reentrant=self.reentrant)

    def forward(self, rank):
        value = ramp(rank, features=3).requires_grad_()
        for number in range(4):
            block = partial(self.run_block, number)
            value = self.in_checkpoint(block, value) if number in self.checkpointed else block(value)
        return value


class Unused(Blocks):
    """One layer more, which only rank 0 uses, after the others, in a checkpoint; and one that nobody uses."""

    def __init__(self, checkpointed, reentrant):
        super().__init__(checkpointed, reentrant)
        self.extra, self.never = (nn.Linear(3, 3, dtype=torch.float64) for _ in range(2))

    def forward(self, rank):
        value = super().forward(rank)
        return value + self.in_checkpoint(self.extra, value) if rank == 0 else value


class Nested(Blocks):
    """A checkpoint inside a checkpoint."""

    def forward(self, rank):
        def inner(value):
            return self.run_block(2, self.in_checkpoint(partial(self.run_block, 1), value))

        return self.run_block(3, self.in_checkpoint(inner, self.run_block(0, ramp(rank, features=3))))


class Sequence(Blocks):
    """Two segments of two layers."""

    def forward(self, rank):
        value = ramp(rank, features=3).requires_grad_()
        return checkpoint_sequential(list(self.blocks), 2, value, use_reentrant=self.reentrant)


class Own(Blocks):
    """Ranks checkpoint different layers."""

    def forward(self, rank):
        self.checkpointed = (rank, rank + 1)
        return super().forward(rank)


def loss(model, rank):
    return model(rank).pow(2).sum()


def check(build, options, **how):
    return check_backwards(build, loss, loss, loss, options=options, **how)


@CAPS
@KINDS
@GRAPH
@pytest.mark.parametrize(
    "checkpointed",
    sweep(map(pytest.param, [(0,), (3,), (1, 2), (0, 1, 2, 3)]), lambda case: case.values == ((1, 2),)),
    ids=str,
)
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
@pytest.mark.parametrize("build", [Nested, Sequence])
def test_inside_each_other_and_in_sequence(build, options, reentrant):
    check(partial(build, (), reentrant), options)


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@KINDS
def test_ranks_that_checkpoint_different_layers(reentrant, policy):
    build, options = partial(Own, (), reentrant), {"find_unused_parameters": True}
    check(build, options, world_size=3, tolerance=1e-13, policy=policy, seed=2)


@pytest.mark.parametrize("options", [GRAPHS["all used"], GRAPHS["searched"]], ids=["all used", "searched"])
def test_a_layer_in_two_reentrant_checkpoints_is_named_otherwise(options):
    # Its first gradient would travel without the second: torch says "marked a variable ready only once".
    def program(rank):
        model = DistributedDataParallel(Checkpointed(is_reentrant=True, times=2).double(), **options)
        with pytest.raises(
            UsageError, match=r"^middle.(bias|weight) got (more gradients|a gradient) .*static_graph=True"
        ):
            model(ramp(rank)).sum().backward()

    run(program, 2)
