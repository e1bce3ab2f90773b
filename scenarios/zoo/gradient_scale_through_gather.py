"""The loss is over the features of all ranks, and the gradients come out too small by the number of ranks.

Gathered features carry no gradient, so each rank's backward is its own samples' share of the gradient of one loss: the
shares are to be added, and the wrapper averages them. All ranks agree, and real gloo shows no error.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def samples(rank: int) -> torch.Tensor:
    """The rank's own."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))


def contrast(features: torch.Tensor) -> torch.Tensor:
    """The similarity of every sample to every other one."""
    return (features @ features.T).square().mean()


def alone(world_size: int) -> Snapshot:
    """The gradient of the loss over all samples."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    contrast(model(torch.cat([samples(rank) for rank in range(world_size)]))).backward()
    return snapshot(model, gradients=True)


def train(rank: int, scale: float) -> Snapshot:
    """The gradient of the loss over the features of all ranks."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 3))
    features = model(samples(rank))
    gathered = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, features.detach())
    gathered[rank] = features
    (scale * contrast(torch.cat(gathered))).backward()  # found here
    return snapshot(model.module, gradients=True)


@scenario(
    expected=finds(Code.DIVERGENCE_GRADIENTS, ranks=every_rank),
    reports=["mlfoundations/open_clip#616", "texttron/tevatron#30", "lightly-ai/lightly#1977", "ShiqiYu/OpenGait#36"],
    tags=["ddp", "oracle"],
    reference=alone,
)
def gradient_scale_through_gather(rank: int) -> Snapshot:
    """The loss as it is."""
    return train(rank, scale=1.0)


@repairs(gradient_scale_through_gather)
def repaired(rank: int) -> Snapshot:
    """The loss is multiplied by the number of ranks, which the wrapper divides by."""
    return train(rank, scale=float(dist.get_world_size()))
