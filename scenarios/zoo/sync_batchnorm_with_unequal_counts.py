"""A hand-written synchronised batch norm takes the mean of the ranks' means, though one rank has fewer samples.

The samples of that rank weigh more than others, in the statistics and in the output of every rank. All ranks agree,
and real gloo shows no error. Torch's own layer weighs by counts, and refuses CPU tensors.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


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
    """All ranks' moments have the same weight."""
    layer = SyncBatchNorm(by_counts=False)
    layer(samples(rank))
    return snapshot(layer)


@repairs(sync_batchnorm_with_unequal_counts)
def repaired(rank: int) -> Snapshot:
    """Moments are weighted by the number of samples."""
    layer = SyncBatchNorm(by_counts=True)
    layer(samples(rank))
    return snapshot(layer)
