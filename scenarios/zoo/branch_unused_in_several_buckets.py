"""One rank's last batch leaves a branch out, and its next collective meets the bucket of that branch.

The buckets before it are reduced as ever, and no forward follows that would raise. Real gloo: tensors of different
sizes meet, and one process aborts.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario

BUCKET_SIZE_MEGABYTES = 0.00004
"""So little that each layer has a bucket of its own."""


class SoundAndPicture(torch.nn.Module):
    """A layer for sound, one for pictures, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.sound = torch.nn.Linear(10, 10)
        self.picture = torch.nn.Linear(10, 10)
        self.head = torch.nn.Linear(10, 1)

    def forward(self, sound: Tensor, picture: Tensor | None) -> Tensor:
        """The loss over what there is."""
        features = self.sound(sound)
        if picture is not None:
            features = features + self.picture(picture)
        loss: Tensor = self.head(features).square().mean()
        return loss


def train(no_picture: Tensor | None, rank: int) -> None:
    """Two steps, with `no_picture` on rank 1 in the second, then the sum of the losses."""
    model = DistributedDataParallel(SoundAndPicture(), bucket_cap_mb=BUCKET_SIZE_MEGABYTES)
    for pictures in (torch.randn(8, 10), no_picture if rank == 1 else torch.randn(8, 10)):
        loss = model(torch.randn(8, 10), pictures)
        loss.backward()  # found here
    dist.all_reduce(loss.detach())  # found here


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#20125", "facebookresearch/fairseq2#484"],
    tags=["reducer", "ddp"],
)
def branch_unused_in_several_buckets(rank: int) -> None:
    """Rank 1's last batch has no pictures."""
    train(None, rank)


@repairs(branch_unused_in_several_buckets)
def repaired(rank: int) -> None:
    """A batch without pictures has black ones."""
    train(torch.zeros(8, 10), rank)
