"""A parameter of a wrapped model is replaced by a new one, and nothing is averaged in the step that follows.

The new one has no hook, the old one never gets a gradient: the bucket they share stays open. Real gloo: all parameters
of the bucket differ after one step; only a second forward would raise. Our engine refuses the first one.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#12603"],
    tags=["wrapping", "ddp"],
)
def parameter_object_replaced_after_wrap(rank: int) -> None:
    """Re-initialise the last layer of a wrapped model, then make one step."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    head.weight = torch.nn.Parameter(torch.zeros(1, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 10)).square().mean().backward()  # found here by ddp
    optimizer.step()  # found here by torch


@repairs(parameter_object_replaced_after_wrap)
def repaired(rank: int) -> None:
    """The parameter is changed in place."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    torch.nn.init.zeros_(head.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 10)).square().mean().backward()
    optimizer.step()
