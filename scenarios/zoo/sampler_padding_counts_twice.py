"""A metric over the shares of DistributedSampler counts some samples twice.

Where the samples cannot be shared out evenly, the sampler repeats the first ones until they can. All ranks agree, and
real gloo shows no error.
"""

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, TensorDataset

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot


def is_right(world_size: int) -> list[int]:
    """By sample, whether the model predicts it; there is one sample more than ranks."""
    return [1 - index % 2 for index in range(world_size + 1)]


def share(rank: int) -> torch.Tensor:
    """Which of a rank's samples are predicted, as its sampler deals them out."""
    world_size = dist.get_world_size()
    right = torch.tensor(is_right(world_size))
    sampler: DistributedSampler[int] = DistributedSampler(TensorDataset(right), world_size, rank, shuffle=False)
    return right[list(sampler)]


def metric(right: torch.Tensor) -> Snapshot:
    """The state of a metric, as it is kept in buffers."""
    return Snapshot({}, {"right": right}, {})


def alone(world_size: int) -> Snapshot:
    """Over each sample once."""
    return metric(torch.tensor(sum(is_right(world_size))))


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
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
    world_size = dist.get_world_size()
    shares = [torch.zeros_like(mine) for _ in range(world_size)]
    dist.all_gather(shares, mine)
    in_order = torch.stack(shares, dim=1).flatten()
    return metric(in_order[: len(is_right(world_size))].sum())
