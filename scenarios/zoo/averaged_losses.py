"""Losses over the samples of all ranks, of which an average of gradients is something else."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def equal_samples(rank: int) -> torch.Tensor:
    """The rank's own."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))


def contrast(features: torch.Tensor) -> torch.Tensor:
    """The similarity of every sample to every other one."""
    return (features @ features.T).square().mean()


def gradient_alone(world_size: int) -> Snapshot:
    """The gradient of the loss over all samples."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    contrast(model(torch.cat([equal_samples(rank) for rank in range(world_size)]))).backward()
    return snapshot(model, gradients=True)


def train(rank: int, scale: float) -> Snapshot:
    """The gradient of the loss over the features of all ranks."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 3))
    features = model(equal_samples(rank))
    gathered = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, features.detach())
    gathered[rank] = features
    (scale * contrast(torch.cat(gathered))).backward()  # found here
    return snapshot(model.module, gradients=True)


@scenario(
    expected=finds(Code.DIVERGENCE_GRADIENTS, ranks=every_rank),
    reports=["mlfoundations/open_clip#616", "texttron/tevatron#30", "lightly-ai/lightly#1977", "ShiqiYu/OpenGait#36"],
    tags=["ddp", "oracle"],
    reference=gradient_alone,
)
def gradient_scale_through_gather(rank: int) -> Snapshot:
    """The loss is over the features of all ranks, and the gradients come out too small by the number of ranks.

    Gathered features carry no gradient, so each rank's backward is its own samples' share of the gradient of one
    loss: the shares are to be added, and the wrapper averages them. All ranks agree, and real gloo shows no error.
    """
    return train(rank, scale=1.0)


@repairs(gradient_scale_through_gather)
def gradient_scale_through_gather_repaired(rank: int) -> Snapshot:
    """The loss is multiplied by the number of ranks, which the wrapper divides by."""
    return train(rank, scale=float(dist.get_world_size()))


def network() -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def uneven_samples(rank: int) -> torch.Tensor:
    """2 on rank 1, 8 on the others."""
    return torch.randn(2 if rank == 1 else 8, 4, generator=torch.Generator().manual_seed(rank))


def step_alone(world_size: int) -> Snapshot:
    """One step on all samples."""
    model = network()
    model(torch.cat([uneven_samples(rank) for rank in range(world_size)])).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["pytorch/pytorch#67253", "pytorch/pytorch#37359", "huggingface/transformers#608"],
    tags=["ddp", "oracle"],
    reference=step_alone,
)
def mean_of_means(rank: int) -> Snapshot:
    """Ranks with fewer samples weigh as much as those with more, as each takes the mean of its own batch.

    The wrapper divides by the number of ranks, so the result is a mean of means, not that over all samples. All
    ranks agree, and real gloo shows no error.
    """
    model = DistributedDataParallel(network())
    model(uneven_samples(rank)).square().mean().backward()  # found here
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model.module)


@repairs(mean_of_means)
def mean_of_means_repaired(rank: int) -> Snapshot:
    """The sum of the losses, over the mean number of samples per rank."""
    model = DistributedDataParallel(network())
    count = torch.tensor(float(len(uneven_samples(rank))))
    dist.all_reduce(count)
    (model(uneven_samples(rank)).square().sum() * dist.get_world_size() / count).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model.module)
