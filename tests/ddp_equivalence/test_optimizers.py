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
from tests.kit.training import Training, assert_each, batches, equal_batches, mean_square, seeded, trained


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


@pytest.mark.torch_only("it is a flaw of torch's engine")
@pytest.mark.parametrize("clear_before_backward", [True, False])
@pytest.mark.parametrize("counts", [(2, 4), (4, 2), (1, 3, 2)])
def test_a_joined_ranks_shard_is_stale_with_torchs(counts, clear_before_backward):
    # Torch's own flaw: a joined rank still steps its shard, but shadowing writes no averaged gradient there. So it
    # applies its last one again and again, or, if that was cleared, none. All ranks agree on the wrong parameters.
    training = Training(networks.multilayer, batches(*counts), mean_square, is_joined=True)
    right = expectation(training)[0].parameters
    shards = shards_by_rank(len(counts))
    stale = expectation_with_stale_shards(training, shards, clear_before_backward=clear_before_backward)
    for actual in returned(sharded, len(counts), args=(training, clear_before_backward)):
        torch.testing.assert_close(actual.parameters, stale, rtol=1e-12, atol=1e-12)
    early = [name for rank, names in enumerate(shards) for name in names if counts[rank] < max(counts)]
    assert not any(torch.allclose(stale[name], right[name], rtol=1e-9) for name in early)


def shards_by_rank(world_size):
    """Largest parameters first, each to the rank that has least so far: ZeRO's rule."""
    sizes = {name: parameter.numel() for name, parameter in networks.multilayer().named_parameters()}
    shards = [[] for _ in range(world_size)]
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        min(shards, key=lambda shard: sum(sizes[own] for own in shard)).append(name)
    return shards


def expectation_with_stale_shards(training, shards, *, clear_before_backward):
    model = seeded(training.build)
    parameters = dict(model.named_parameters())
    counts = [len(own) for own in training.batches]
    last = [dict.fromkeys(parameters) for _ in counts]
    for step in range(max(counts)):
        present = [rank for rank, count in enumerate(counts) if step < count]
        gradients = []
        for rank in present:
            loss = mean_square(model, training.batches[rank][step])
            gradients.append(dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True)))
        mean = {name: sum(own[name] for own in gradients) / len(counts) for name in parameters}
        for rank, names in enumerate(shards):
            if rank in present:
                last[rank] = mean
            elif not clear_before_backward:
                last[rank] = dict.fromkeys(parameters)
            with torch.no_grad():
                for name in names:
                    if last[rank][name] is not None:
                        parameters[name] -= 0.1 * last[rank][name]
    return {name: parameter.detach() for name, parameter in parameters.items()}


def test_a_state_dict_is_gathered_from_the_shards():
    def program(rank):
        torch.manual_seed(rank)
        model = DistributedDataParallel(networks.multilayer())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
        for batch in training.batches[rank]:
            optimizer.zero_grad()
            mean_square(model, batch).backward()
            optimizer.step()
        optimizer.consolidate_state_dict(to=1)
        if rank == 1:
            return {index: state["momentum_buffer"] for index, state in optimizer.state_dict()["state"].items()}

    training = Training(networks.multilayer, equal_batches(3), mean_square, momentum=0.9)
    model = seeded(networks.multilayer)
    optimizer = training.optimizer(model)
    for step in range(3):
        optimizer.zero_grad()
        (sum(mean_square(model, own[step]) for own in training.batches) / 3).backward()
        optimizer.step()
    expected = {index: state["momentum_buffer"] for index, state in optimizer.state_dict()["state"].items()}
    torch.testing.assert_close(returned(program, 3)[1], expected, rtol=1e-12, atol=1e-12)
