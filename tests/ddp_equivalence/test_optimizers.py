"""Optimizers that communicate themselves: ZeroRedundancyOptimizer, alone and joined with DDP."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer

from tests.ddp_equivalence.engine import DistributedDataParallel, expectation
from tests.kit import networks
from tests.kit.results import returned
from tests.kit.training import Training, assert_each, batches, equal_batches, mean_square, trained


def sharded(rank, training, clear):
    torch.manual_seed(rank)
    module = networks.multilayer()
    model = DistributedDataParallel(module)
    options = {"momentum": training.momentum, "weight_decay": training.weight_decay}
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, **options)
    join = {"divide_by_initial_world_size": training.divide_by_initial_world_size}
    with Join([model, optimizer], **join) if training.is_joined else nullcontext():
        for batch in training.batches[rank]:
            if clear:
                optimizer.zero_grad()
            mean_square(model, batch).backward()
            optimizer.step()
            if not clear:
                optimizer.zero_grad()
    return trained(module)


def check(training, clear=True, **how):
    assert_each(returned(sharded, training.world_size, args=(training, clear)), expectation(training), **how)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_sharding_changes_nothing(world_size, is_joined, momentum):
    check(Training(networks.multilayer, equal_batches(world_size), mean_square, momentum=momentum, is_joined=is_joined))


@pytest.mark.parametrize("engine_name", ["ddp"], indirect=True)
@pytest.mark.parametrize("clear_before_backward", [True, False])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.1}], ids=["plain", "momentum"])
@pytest.mark.parametrize("by_all", [True, False], ids=["by-all", "by-present"])
@pytest.mark.parametrize("counts", [(1, 3), (3, 1), (0, 2, 3), (3, 0, 1, 2)], ids=str)
def test_uneven_inputs_too_with_our_engine(counts, by_all, options, clear_before_backward):
    inputs = batches(*counts)
    how = {"is_joined": True, "divide_by_initial_world_size": by_all, **options}
    check(Training(networks.multilayer, inputs, mean_square, **how), clear_before_backward, gradients=False)
