"""The loss is over the features of all ranks, and the gradients come out too small by the number of ranks.

Gathered features carry no gradient, so each rank's backward is its own samples' share of the gradient of one loss: the
shares are to be added, and the wrapper averages them. All ranks agree, and real gloo shows no error.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scenarios.model import finds, repairs, scenario
from scenarios.snapshot import Snapshot, snapshot
from simulator import Code


def network() -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def samples(rank: int) -> torch.Tensor:
    """The rank's own."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))


def contrast(features: torch.Tensor) -> torch.Tensor:
    """How alike every sample is to every other one."""
    return (features @ features.T).square().mean()


def gathered(features: torch.Tensor) -> torch.Tensor:
    """Those of all ranks, with a gradient for the rank's own."""
    parts = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features.detach())
    parts[dist.get_rank()] = features
    return torch.cat(parts)


def alone(world_size: int) -> Snapshot:
    """One step on all samples."""
    model = network()
    contrast(model(torch.cat([samples(rank) for rank in range(world_size)]))).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model)


@scenario(
    about=__doc__,
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=lambda world_size: tuple(range(world_size))),
    reports=["mlfoundations/open_clip#616", "texttron/tevatron#30", "lightly-ai/lightly#1977", "ShiqiYu/OpenGait#36"],
    tags=["ddp", "oracle"],
    reference=alone,
)
def gradient_scale_through_gather(rank: int) -> Snapshot:
    """One step by the loss over all features."""
    model = DistributedDataParallel(network())
    contrast(gathered(model(samples(rank)))).backward()  # found here
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model.module)


@repairs(gradient_scale_through_gather)
def repaired(rank: int) -> Snapshot:
    """The loss is multiplied by the number of ranks, which the wrapper divides by."""
    model = DistributedDataParallel(network())
    (contrast(gathered(model(samples(rank)))) * dist.get_world_size()).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model.module)
