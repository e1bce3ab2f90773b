"""A moving average of the model is loaded back into it on rank 0 only, as the rank that writes the checkpoint.

Training continues from the average on rank 0 and from the newest parameters elsewhere. Real gloo shows no error.
"""

import copy

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def train(model: DistributedDataParallel, average: torch.nn.Module) -> None:
    """Three steps, each followed by the average."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()  # found here
        for mean, newest in zip(average.state_dict().values(), model.module.state_dict().values(), strict=True):
            mean.lerp_(newest, 0.5)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(0)),
    reports=["lucidrains/ema-pytorch#9"],
    tags=["ddp", "wrapping"],
)
def average_copied_back_on_one_rank(rank: int) -> None:
    """Train, load the average in order to save it, and train on."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    average = copy.deepcopy(model.module)
    train(model, average)
    if rank == 0:
        model.module.load_state_dict(average.state_dict())
    train(model, average)


@repairs(average_copied_back_on_one_rank)
def repaired(rank: int) -> None:
    """Every rank loads the average: it is the same on all."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    average = copy.deepcopy(model.module)
    train(model, average)
    model.module.load_state_dict(average.state_dict())
    train(model, average)
