"""The weights are initialised after the model was wrapped, on each rank with a seed of its own.

The wrapper sends rank 0's state only while it is constructed. Real gloo shows no error; every rank trains a model of
its own, with the gradients of all.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


def train(model: DistributedDataParallel) -> None:
    """Two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()  # found here


@scenario(expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank), tags=["ddp", "wrapping"])
def initialised_after_wrap(rank: int) -> None:
    """Seeds differ so that ranks draw different samples, and the weights are drawn as well."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    torch.nn.init.normal_(model.module.weight, std=0.02)
    train(model)


@repairs(initialised_after_wrap)
def repaired(rank: int) -> None:
    """The weights are drawn before the model is wrapped."""
    torch.manual_seed(rank)
    module = torch.nn.Linear(4, 1)
    torch.nn.init.normal_(module.weight, std=0.02)
    train(DistributedDataParallel(module))
