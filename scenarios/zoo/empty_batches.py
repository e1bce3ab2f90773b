"""Streams of samples that leave one rank with an empty batch."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


class WeightedLoss(torch.nn.Module):
    """A loss with a learned weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, samples: Tensor) -> Tensor:
        """The loss."""
        return self.weight * samples.square().mean()


def blocks(world_size: int) -> list[Tensor]:
    """Two epochs of a stream, in blocks of one sample for each rank; the last block of each is one short."""
    return 2 * list(torch.linspace(0, 1, 2 * world_size - 1).split(world_size))


def alone(world_size: int) -> Snapshot:
    """The same training in one process, on the blocks that go round."""
    model = WeightedLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for block in [block for block in blocks(world_size) if len(block) == world_size]:
        optimizer.zero_grad()
        model(block).backward()
        optimizer.step()
    return snapshot(model)


def train(rank: int, *, drop_last: bool) -> Snapshot:
    """Train on the rank's sample of each block."""
    model = DistributedDataParallel(WeightedLoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for block in blocks(dist.get_world_size()):
        if len(block) == dist.get_world_size() or not drop_last:
            optimizer.zero_grad()
            model(block[rank : rank + 1]).backward()  # found here
            optimizer.step()
    return snapshot(model.module)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["huggingface/accelerate#209"],
    tags=["ddp", "loop", "oracle"],
    reference=alone,
)
def dispatcher_leaves_a_rank_empty(rank: int) -> Snapshot:
    """The last samples of a stream do not go round: one rank gets an empty batch, and its NaN spoils every replica.

    The mean over no sample is NaN, and a learned weight of the loss gets it as its gradient; averaging hands it to
    all ranks. Gloo adds NaN like any other number, so no rank notices.
    """
    return train(rank, drop_last=False)


@repairs(dispatcher_leaves_a_rank_empty)
def dispatcher_leaves_a_rank_empty_repaired(rank: int) -> Snapshot:
    """A block that does not go round is dropped, on every rank."""
    return train(rank, drop_last=True)


class Flattening(torch.nn.Module):
    """A layer over all pixels of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, images: Tensor) -> Tensor:
        """One number for each image."""
        answer: Tensor = self.layer(images.view(len(images), -1))  # found here
        return answer


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=lambda world_size: (world_size - 1,)),
    reports=["huggingface/accelerate#209"],
    tags=["ddp", "loop"],
)
def empty_batch_refused_by_a_layer(rank: int) -> None:
    """The last samples of a stream do not go round, and a layer refuses the empty batch of the rank that gets none.

    With no elements the size that `view(n, -1)` asks for is undetermined, so that rank leaves by an exception and
    the others wait for its gradients. On gloo they see a closed connection.
    """
    # Train on one image of each block; the last block is one short, so the last rank finds none there.
    torch.manual_seed(0)
    model = DistributedDataParallel(Flattening())
    world_size = dist.get_world_size()
    for block in torch.randn(2 * world_size - 1, 2, 2).split(world_size):
        model(block[rank : rank + 1]).square().mean().backward()


@repairs(empty_batch_refused_by_a_layer)
def empty_batch_refused_by_a_layer_repaired(rank: int) -> None:
    """A block that does not go round is dropped, on every rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Flattening())
    world_size = dist.get_world_size()
    for block in torch.randn(2 * world_size - 1, 2, 2).split(world_size):
        if len(block) == world_size:
            model(block[rank : rank + 1]).square().mean().backward()
