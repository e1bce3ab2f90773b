"""Two graphs are outstanding, and the backward of the first uses up the reduction for the second.

The last forward arms the reducer for the next backward, whichever it is. Real gloo: no error; the second graph's
gradients stay local and the parameters differ. Our engine raises at the second backward.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["meta-pytorch/torchrec#4758", "pytorch/pytorch#59359"],
    tags=["reducer", "accumulation", "ddp"],
)
def reducer_armed_by_another_forward(rank: int) -> None:
    """Pipeline two micro-batches: both forwards, the last outside `no_sync`, then both backwards."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        first = model(torch.randn(8, 10)).square().mean()
    second = model(torch.randn(8, 10)).square().mean()
    first.backward()
    second.backward()  # found here by ddp
    optimizer.step()  # found here by torch


@repairs(reducer_armed_by_another_forward)
def repaired(rank: int) -> None:
    """One backward runs both graphs."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        first = model(torch.randn(8, 10)).square().mean()
    second = model(torch.randn(8, 10)).square().mean()
    (first + second).backward()
    optimizer.step()
