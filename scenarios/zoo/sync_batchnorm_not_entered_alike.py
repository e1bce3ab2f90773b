"""One rank's model is in evaluation mode, so its batch norm takes no part in exchanging statistics.

A synchronised batch norm reduces inside its forward; here that meets the gradients of the rank that went past it. Real
gloo aborts a process over such sizes. Torch's own layer refuses CPU tensors, so this is a simple one.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


class Centred(torch.nn.Module):
    """Takes the mean over all ranks' batches away: half of a synchronised batch norm."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The batch around zero, while training."""
        if not self.training:
            return batch
        mean = batch.detach().mean(dim=0)
        dist.all_reduce(mean)  # found here
        return batch - mean / dist.get_world_size()


def network() -> torch.nn.Module:
    """Two linear layers, with the exchange in between."""
    return torch.nn.Sequential(torch.nn.Linear(4, 3), Centred(), torch.nn.Linear(3, 1))


def train(rank: int, *, goes_back: bool) -> None:
    """On 3 batches; rank 1 looks at its predictions after the first."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    for step in range(3):
        model(torch.randn(8, 4)).square().mean().backward()  # found here
        if rank == 1 and step == 0:
            model.module.eval()(torch.randn(8, 4))
            model.module.train(goes_back)


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#44957", "pytorch/pytorch#38174", "pytorch/pytorch#22192", "pytorch/pytorch#74944"],
    tags=["ddp", "buffers"],
)
def sync_batchnorm_not_entered_alike(rank: int) -> None:
    """Rank 1 stays in evaluation mode."""
    train(rank, goes_back=False)


@repairs(sync_batchnorm_not_entered_alike)
def repaired(rank: int) -> None:
    """Rank 1 goes back to training mode."""
    train(rank, goes_back=True)
