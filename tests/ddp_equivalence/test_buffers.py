"""Module buffers: broadcast by DDP before a forward, or handled by a hook."""

from __future__ import annotations

from inspect import signature

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchEngine
from torch.nn.parallel.distributed import _BufferCommHookLocation

from tests.ddp_equivalence.engine import DistributedDataParallel, check
from tests.ddp_equivalence.test_plain import OPTIONS, WORLDS
from tests.kit import networks
from tests.kit.results import returned
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


class Counting(nn.Module):
    """A buffer that adds up what the rank has seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.float64))

    def forward(self, batch):
        self.seen += batch.sum(dim=0)
        return (batch * self.weight).sum()


def averaging(state, buffers):
    """Average every buffer over the ranks, at once."""
    for buffer in buffers.values():
        dist.all_reduce(buffer, group=state)
        buffer /= dist.get_world_size(state)


def averaging_later(state, buffers):
    """The same, awaited by DDP at the end of the backward."""
    works = [dist.all_reduce(buffer, group=state, async_op=True) for buffer in buffers.values()]

    def divide(future):
        future.value()[0].div_(dist.get_world_size(state))
        return future.value()

    return [work.get_future().then(divide) for work in works]


@pytest.mark.torch_only("the interface is torch's own; for ours there is tests/ddp/test_buffer_sync.py")
@pytest.mark.parametrize(
    ("location", "hook"),
    [
        (_BufferCommHookLocation.PRE_FORWARD, averaging),
        (_BufferCommHookLocation.POST_FORWARD, averaging),
        (_BufferCommHookLocation.POST_FORWARD, averaging_later),
    ],
    ids=["pre", "post", "post-with-futures"],
)
def test_hooks(location, hook):
    def program(rank):
        module = Counting()
        model = DistributedDataParallel(module)
        model._register_buffer_comm_hook(None, hook, location)
        history = []
        for batch in training[rank]:
            model(batch).backward()
            history.append(module.seen.clone())
        return history

    training = batches(3, 3, 3)
    history = returned(program, 3)
    seen = [torch.zeros(4, dtype=torch.float64) for _ in range(3)]
    for step in range(3):
        if location is _BufferCommHookLocation.PRE_FORWARD:
            seen = [sum(seen) / 3] * 3
        seen = [own + training[rank][step].sum(dim=0) for rank, own in enumerate(seen)]
        if location is _BufferCommHookLocation.POST_FORWARD:
            seen = [sum(seen) / 3] * 3
        for rank in range(3):
            torch.testing.assert_close(history[rank][step], seen[rank], rtol=1e-12, atol=1e-12)


def test_buffers_that_the_forward_replaces():
    class Replacing(Counting):
        def forward(self, batch):
            self.seen = self.seen + batch.sum(dim=0)
            return (batch * self.weight).sum()

    check(Training(Replacing, equal_batches(3), lambda model, batch: model(batch)))
    check(Training(Replacing, batches(1, 3, 0), lambda model, batch: model(batch), is_joined=True))
