"""Batch norms that exchange their statistics between the ranks."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, odd_one_out, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


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
    """One rank's model is in evaluation mode, so its batch norm takes no part in exchanging statistics.

    A synchronised batch norm reduces inside its forward; here that meets the gradients of the rank that went past
    it. Real gloo aborts a process over such sizes. Torch's own layer refuses CPU tensors, so this is a simple one.
    """
    train(rank, goes_back=False)


@repairs(sync_batchnorm_not_entered_alike)
def sync_batchnorm_not_entered_alike_repaired(rank: int) -> None:
    """Rank 1 goes back to training mode."""
    train(rank, goes_back=True)


class SyncBatchNorm(torch.nn.BatchNorm1d):
    """Normalises by the statistics of all ranks' samples."""

    def __init__(self, *, by_counts: bool) -> None:
        super().__init__(1, affine=False, momentum=1.0)
        self.by_counts = by_counts

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The batch, normalised."""
        weight = torch.tensor([len(batch) if self.by_counts else 1.0])
        moments = torch.cat([batch.mean(dim=0), batch.square().mean(dim=0)])
        total = torch.cat([weight * moments, weight])
        dist.all_reduce(total)  # found here
        mean, square = total[:1] / total[2], total[1:2] / total[2]
        self.running_mean, self.running_var = mean, square - mean.square()
        return (batch - mean) / (self.running_var + self.eps).sqrt()


def samples(rank: int) -> torch.Tensor:
    """2 on rank 1, 8 on the others."""
    return torch.arange(2.0 if rank == 1 else 8.0).reshape(-1, 1) + rank


def alone(world_size: int) -> Snapshot:
    """The statistics of all samples."""
    batch = torch.cat([samples(rank) for rank in range(world_size)])
    return Snapshot({}, {"running_mean": batch.mean(dim=0), "running_var": batch.var(dim=0, correction=0)}, {})


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
    reports=["pytorch/pytorch#22192"],
    tags=["buffers", "oracle"],
    reference=alone,
)
def sync_batchnorm_with_unequal_counts(rank: int) -> Snapshot:
    """A hand-written synchronised batch norm takes the mean of the ranks' means, though one rank has fewer samples.

    The samples of that rank weigh more than others, in the statistics and in the output of every rank. All ranks
    agree, and real gloo shows no error. Torch's own layer weighs by counts, and refuses CPU tensors.
    """
    layer = SyncBatchNorm(by_counts=False)
    layer(samples(rank))
    return snapshot(layer)


@repairs(sync_batchnorm_with_unequal_counts)
def sync_batchnorm_with_unequal_counts_repaired(rank: int) -> Snapshot:
    """Moments are weighted by the number of samples."""
    layer = SyncBatchNorm(by_counts=True)
    layer(samples(rank))
    return snapshot(layer)
