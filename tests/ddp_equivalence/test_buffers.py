"""Module buffers, which DDP broadcasts before a forward."""

from __future__ import annotations

from inspect import signature

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from tests.ddp_equivalence.engine import check
from tests.ddp_equivalence.test_plain import OPTIONS, WORLDS
from tests.kit import networks
from tests.kit.training import Training, batches, equal_batches, mean_square

pytestmark = [
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_batch_norm(world_size, options):
    check(Training(networks.with_buffers, equal_batches(world_size), mean_square), options)


def test_a_forward_after_no_sync_takes_no_buffers():
    check(Training(networks.with_buffers, equal_batches(3, count=6), mean_square, accumulate=3))


@pytest.mark.parametrize("world_size", WORLDS)
def test_without_synchronisation_every_rank_keeps_its_own(world_size):
    training = Training(networks.with_buffers, equal_batches(world_size), mean_square, synchronizes_buffers=False)
    has_own_name = "forward_sync_buffers" in signature(TorchEngine).parameters  # since torch 2.13
    result = check(training, {"forward_sync_buffers" if has_own_name else "broadcast_buffers": False})
    first, second = (result.returns[rank].buffers["1.running_mean"] for rank in (0, 1))
    assert not torch.equal(first, second)


class Replacing(nn.Module):
    """A buffer that adds up what the rank has seen, in a new tensor each time."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.float64))

    def forward(self, batch):
        self.seen = self.seen + batch.sum(dim=0)
        return (batch * self.weight).sum()


def test_buffers_that_the_forward_replaces():
    check(Training(Replacing, equal_batches(3), lambda model, batch: model(batch)))
    check(Training(Replacing, batches(1, 3, 0), lambda model, batch: model(batch), is_joined=True))
