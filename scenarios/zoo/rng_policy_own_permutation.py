"""Each rank shuffles the samples with a seed of its own before it takes its share, so shares overlap.

Some samples are seen twice in an epoch and others never: a shuffle is a decision that must be the same on all ranks.
All agree on the parameters, and real gloo shows no error.
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


def samples(world_size: int) -> torch.Tensor:
    """The data set: four samples for each rank."""
    return torch.randn(4 * world_size, 4, generator=torch.Generator().manual_seed(0))


def alone(world_size: int) -> Snapshot:
    """One step on all samples, in any order."""
    model = network()
    model(samples(world_size)).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model)


def train(rank: int, seed: int) -> Snapshot:
    """One step on the rank's share of the shuffled samples."""
    world_size = dist.get_world_size()
    model = DistributedDataParallel(network())
    order = torch.randperm(4 * world_size, generator=torch.Generator().manual_seed(seed))
    model(samples(world_size)[order[rank::world_size]]).square().mean().backward()  # found here
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model.module)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["pytorch/pytorch#31771", "facebookresearch/detr#544", "goodfire-ai/spd#412"],
    tags=["ddp", "oracle"],
    reference=alone,
)
def rng_policy_own_permutation(rank: int) -> Snapshot:
    """Shuffle with the rank as seed."""
    return train(rank, seed=rank)


@repairs(rng_policy_own_permutation)
def repaired(rank: int) -> Snapshot:
    """Shuffle with the same seed everywhere; for another order in the next epoch, add its number."""
    return train(rank, seed=0)
