"""A buffer drawn at random differs between the ranks, since wrapping with broadcast_buffers=False leaves it alone.

The option is taken for "not before every forward", but it also switches off the broadcast at construction. Real gloo
shows no error: each rank trains the shared weights on features of its own.
"""

import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


class RandomFeatures(torch.nn.Module):
    """A trained layer on a fixed random projection."""

    directions: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(4, 6))
        self.head = torch.nn.Linear(6, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The prediction."""
        return self.head(torch.cos(batch @ self.directions))  # type: ignore[no-any-return]


def train(model: torch.nn.Module) -> None:
    """Two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()  # found here
        optimizer.step()


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
    reports=["pytorch/pytorch#111138", "pytorch/pytorch#178054", "pytorch/pytorch#63916"],
    tags=["ddp", "buffers"],
)
def buffers_not_synchronised_at_wrap(rank: int) -> None:
    """Each rank draws its own projection."""
    torch.manual_seed(rank)
    warnings.simplefilter("ignore", FutureWarning)  # newer releases of torch deprecate the option for this very reason
    train(DistributedDataParallel(RandomFeatures(), broadcast_buffers=False))


@repairs(buffers_not_synchronised_at_wrap)
def repaired(rank: int) -> None:
    """Rank 0's buffers are broadcast by hand; in newer releases forward_sync_buffers=False does it when wrapping."""
    torch.manual_seed(rank)
    warnings.simplefilter("ignore", FutureWarning)
    module = RandomFeatures()
    dist.broadcast(module.directions, src=0)
    train(DistributedDataParallel(module, broadcast_buffers=False))
