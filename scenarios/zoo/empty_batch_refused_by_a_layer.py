"""The last samples of a stream do not go round, and a layer refuses the empty batch of the rank that gets none.

With no elements the size that `view(n, -1)` asks for is undetermined, so that rank leaves by an exception and the
others wait for its gradients. On gloo they see a closed connection.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


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
    """Train on one image of each block; the last block is one short, so the last rank finds none there."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Flattening())
    world_size = dist.get_world_size()
    for block in torch.randn(2 * world_size - 1, 2, 2).split(world_size):
        model(block[rank : rank + 1]).square().mean().backward()


@repairs(empty_batch_refused_by_a_layer)
def repaired(rank: int) -> None:
    """A block that does not go round is dropped, on every rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Flattening())
    world_size = dist.get_world_size()
    for block in torch.randn(2 * world_size - 1, 2, 2).split(world_size):
        if len(block) == world_size:
            model(block[rank : rank + 1]).square().mean().backward()
