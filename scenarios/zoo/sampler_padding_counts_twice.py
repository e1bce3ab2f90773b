"""A metric over the shares of DistributedSampler counts some samples twice.

Where the samples cannot be shared out evenly, the sampler repeats the first ones until they can. All ranks agree, and
real gloo shows no error.
"""

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, TensorDataset

from scenarios.model import finds, repairs, scenario
from scenarios.snapshot import Snapshot
from simulator import Code

IS_RIGHT = (1, 0, 1, 0, 1)
"""By sample, whether the model predicts it."""


def share(rank: int) -> torch.Tensor:
    """Which of a rank's samples are predicted, as its sampler deals them out."""
    samples = TensorDataset(torch.tensor(IS_RIGHT))
    sampler: DistributedSampler[int] = DistributedSampler(samples, dist.get_world_size(), rank, shuffle=False)
    return torch.tensor([IS_RIGHT[index] for index in sampler])


def metric(right: torch.Tensor) -> Snapshot:
    """The state of a metric, as it is kept in buffers."""
    return Snapshot({}, {"right": right}, {})


def alone(world_size: int) -> Snapshot:
    """Over each sample once."""
    return metric(torch.tensor(sum(IS_RIGHT)))


@scenario(
    about=__doc__,
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=lambda world_size: tuple(range(world_size))),
    reports=["pytorch/pytorch#25162", "huggingface/accelerate#540"],
    tags=["oracle"],
    reference=alone,
)
def sampler_padding_counts_twice(rank: int) -> Snapshot:
    """Add up what the ranks count."""
    right = share(rank).sum()
    dist.all_reduce(right)  # found here
    return metric(right)


@repairs(sampler_padding_counts_twice)
def repaired(rank: int) -> Snapshot:
    """Gather what each sample gives, in the order of the samples, and leave out what comes after the last one."""
    mine = share(rank)
    shares = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(shares, mine)
    in_order = torch.stack(shares, dim=1).flatten()
    return metric(in_order[: len(IS_RIGHT)].sum())
