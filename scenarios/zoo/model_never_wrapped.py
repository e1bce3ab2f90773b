"""No rank wraps the model and none reduces a gradient, so each rank trains a model of its own, and all looks well.

A check of replicas that was asked for finds none to compare. It must not say that all is well: it says unknown.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(expected=finds(Code.UNCHECKED, ranks=every_rank), tags=["ddp"], check="replicas")
def model_never_wrapped(rank: int) -> None:
    """Train one step on the rank's own batch."""
    torch.manual_seed(0)
    _train(torch.nn.Linear(2, 1), rank)


@repairs(model_never_wrapped)
def repaired(rank: int) -> None:
    """The model is wrapped."""
    torch.manual_seed(0)
    _train(DistributedDataParallel(torch.nn.Linear(2, 1)), rank)


def _train(model: torch.nn.Module, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.full((2, 2), rank + 1.0)).sum().backward()
    optimizer.step()
