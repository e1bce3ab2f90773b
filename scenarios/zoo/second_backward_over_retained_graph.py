"""A second backward runs over a retained graph, and its gradients are not averaged.

A forward arms the reducer for one backward. Real gloo: no error; the second loss adds each rank's own gradients to the
averaged ones, and the parameters differ. Our engine raises at the second backward.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#59359"],
    tags=["reducer", "ddp"],
)
def second_backward_over_retained_graph(rank: int) -> None:
    """Two losses of one forward, each with a backward of its own."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    answer = model(torch.randn(8, 10))
    answer.square().mean().backward(retain_graph=True)
    answer.abs().mean().backward()  # found here by ddp
    optimizer.step()  # found here by torch


@repairs(second_backward_over_retained_graph)
def repaired(rank: int) -> None:
    """One backward of the sum of the losses."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    answer = model(torch.randn(8, 10))
    (answer.square().mean() + answer.abs().mean()).backward()
    optimizer.step()
