"""Ranks with fewer samples weigh as much as those with more, as each takes the mean of its own batch.

The wrapper divides by the number of ranks, so the result is a mean of means, not that over all samples. All ranks
agree, and real gloo shows no error.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def network() -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def samples(rank: int) -> torch.Tensor:
    """2 on rank 1, 8 on the others."""
    return torch.randn(2 if rank == 1 else 8, 4, generator=torch.Generator().manual_seed(rank))


def alone(world_size: int) -> Snapshot:
    """One step on all samples."""
    model = network()
    model(torch.cat([samples(rank) for rank in range(world_size)])).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["pytorch/pytorch#67253", "pytorch/pytorch#37359", "huggingface/transformers#608"],
    tags=["ddp", "oracle"],
    reference=alone,
)
def mean_of_means(rank: int) -> Snapshot:
    """One step by the mean of each rank's losses."""
    model = DistributedDataParallel(network())
    model(samples(rank)).square().mean().backward()  # found here
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model.module)


@repairs(mean_of_means)
def repaired(rank: int) -> Snapshot:
    """The sum of the losses, over the mean number of samples per rank."""
    model = DistributedDataParallel(network())
    count = torch.tensor(float(len(samples(rank))))
    dist.all_reduce(count)
    (model(samples(rank)).square().sum() * dist.get_world_size() / count).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model.module)
