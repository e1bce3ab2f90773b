"""Batch normalisation over several ranks equals torch's over their batches in one, whatever each rank has."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpsim import simulate
from ddpsim.scenarios.training.models import SyncBatchNorm, make_network
from tests.kit.results import returned

FEATURES = 3
ROUNDS = 2
SIZES = [(4,), (4, 4), (1, 1), (2, 5), (3, 3, 3), (1, 4, 2), (6, 0, 1)]


def initialise(layer):
    """The same values for both kinds of layer; none that hides a factor or a term."""
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, -2.0, 1.5]))
        layer.bias.copy_(torch.tensor([0.1, 0.2, -0.3]))
    return layer.double()


def batches(sizes):
    """For each round the batch of each rank; far from zero, and of other scale, in one feature."""
    generator = torch.Generator().manual_seed(11)
    scale, shift = torch.tensor([1.0, 3.0, 0.1]), torch.tensor([0.0, 5.0, -1.0])
    return [
        [torch.randn(size, FEATURES, generator=generator).mul(scale).add(shift).double() for size in sizes]
        for _ in range(ROUNDS)
    ]


def loss_of(outputs):
    """A loss whose gradient differs from row to row and is not one of those that normalisation takes away."""
    return (outputs.exp() * torch.arange(1.0, 1 + FEATURES)).sum() / 10


def step(layer, batch):
    batch = batch.clone().requires_grad_()
    layer.zero_grad()
    outputs = layer(batch)
    loss_of(outputs).backward()
    return outputs.detach(), batch.grad, layer.weight.grad, layer.bias.grad


def rows_of(returns, index):
    return torch.cat([rank[index] for rank in returns])


def assert_as_one_batch(returns, sizes):
    """`returns` has per rank and round what `step` gave, and then the layer's buffers."""
    layer = initialise(nn.BatchNorm1d(FEATURES))
    for number, parts in enumerate(batches(sizes)):
        outputs, gradient, weight, bias = step(layer, torch.cat(parts))
        ranks = [rounds[number] for rounds, _ in returns]
        close(rows_of(ranks, 0), outputs)
        close(rows_of(ranks, 1), gradient)
        close(sum(rank[2] for rank in ranks), weight)
        close(sum(rank[3] for rank in ranks), bias)
    for _, buffers in returns:
        assert list(buffers) == ["running_mean", "running_var", "num_batches_tracked"]
        for name, value in layer.named_buffers():
            close(buffers[name], value)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def train(layer, parts):
    rounds = [step(layer, part) for part in parts]
    return rounds, dict(layer.named_buffers())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equals_batch_norm_of_one_batch(sizes):
    parts = batches(sizes)

    def program(rank):
        return train(initialise(SyncBatchNorm(FEATURES)), [of_round[rank] for of_round in parts])

    assert_as_one_batch(returned(program, len(sizes)), sizes)


@pytest.mark.parametrize("idle", [0, 1, 2])
def test_a_rank_that_follows_with_zeros_changes_nothing(idle):
    sizes = (2, 5)
    parts = batches(sizes)
    busy = [rank for rank in range(3) if rank != idle]

    def program(rank):
        if rank != idle:
            own = busy.index(rank)
            return train(initialise(SyncBatchNorm(FEATURES)), [of_round[own] for of_round in parts])
        for _ in range(2 * ROUNDS):  # a forward and a backward in each
            dist.all_reduce(torch.zeros(2 * FEATURES + 1, dtype=torch.float64))
        return None

    returns = returned(program, 3)
    assert_as_one_batch([returns[rank] for rank in busy], sizes)


def test_within_a_group():
    parts = batches((2, 3))

    def program(rank):
        group = dist.new_group([0, 2])
        if rank == 1:
            return None
        layer = initialise(SyncBatchNorm(FEATURES))
        return layer(parts[0][rank // 2], group).detach()

    first, _, second = returned(program, 3)
    expected = initialise(nn.BatchNorm1d(FEATURES))(torch.cat(parts[0]))
    close(torch.cat([first, second]), expected.detach())


def test_is_batch_norm_without_a_group():
    (parts,), (other,) = batches((5,))
    synchronised, plain = (initialise(kind(FEATURES)) for kind in (SyncBatchNorm, nn.BatchNorm1d))
    for batch in (parts, other):
        for found, expected in zip(step(synchronised, batch), step(plain, batch), strict=True):
            assert found.equal(expected)
    for found, expected in zip(synchronised.state_dict().items(), plain.state_dict().items(), strict=True):
        assert found[0] == expected[0]
        assert found[1].equal(expected[1])


def test_evaluation_makes_no_collective():
    def program(rank):
        layer = initialise(SyncBatchNorm(FEATURES)).eval()
        return layer(torch.ones(1, FEATURES, dtype=torch.float64)).detach() if rank == 0 else None

    expected = initialise(nn.BatchNorm1d(FEATURES)).eval()(torch.ones(1, FEATURES, dtype=torch.float64))
    assert returned(program, 2)[0].equal(expected.detach())


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_on_all_ranks_together(rows):
    def program(rank):
        SyncBatchNorm(FEATURES)(torch.ones(rows if rank == 0 else 0, FEATURES))

    errors = simulate(program, 2).errors
    expected = f"batch normalisation got {rows} rows on all ranks together, expected 2 or more"
    assert [(rank, type(error), str(error)) for rank, error in sorted(errors.items())] == [
        (0, ValueError, expected),
        (1, ValueError, expected),
    ]


def test_half_precision_counts_exactly():
    # bfloat16 has neither 257 nor 259: as 256 and 260, they would give a mean of 1.015625.
    batch = torch.ones(257, 1, dtype=torch.bfloat16)
    batch[0] = 3

    def program(rank):
        layer = SyncBatchNorm(1, momentum=1.0).to(torch.bfloat16)
        outputs = layer(batch if rank == 0 else batch[:0])
        return outputs.dtype, layer.running_mean.item()

    mean = torch.tensor(259 / 257).bfloat16().item()
    assert returned(program, 2) == ((torch.bfloat16, mean),) * 2


def test_network_under_ddp_equals_batch_norm_of_one_batch():
    sizes, world_size = (3, 3), 2
    generator = torch.Generator().manual_seed(1)
    plain = make_network("batch_norm", seed=4, dtype=torch.float64)
    parts = [[plain.draw_batch(size, generator) for size in sizes] for _ in range(3)]

    def train_network(network, mine):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        for batch in mine:
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()

    def program(rank):
        network = make_network("sync_batch_norm", seed=4, dtype=torch.float64)
        assert network.communicates
        train_network(DistributedDataParallel(network), [of_round[rank] for of_round in parts])
        return network.state_dict()

    train_network(plain, [torch.cat(of_round) for of_round in parts])
    for state in returned(program, world_size):
        for (name, found), (expected_name, expected) in zip(state.items(), plain.state_dict().items(), strict=True):
            assert name == expected_name
            close(found, expected)


def test_network_uses_its_group():
    plain = make_network("batch_norm", dtype=torch.float64)
    batch = plain.draw_batch(4, torch.Generator())

    def program(rank):
        network = make_network("sync_batch_norm", dtype=torch.float64)
        network.group = dist.new_group([0, 2])
        return None if rank == 1 else network(batch[rank : rank + 2]).detach()

    first, _, second = returned(program, 3)
    close(torch.cat([first, second]), plain(batch).detach())
