"""Only the forward of the last micro-batch runs under `no_sync`, and its backward reduces nothing.

Whether a backward reduces is decided in the forward before it: `no_sync` around the backward alone does nothing, around
the forward alone all. Real gloo: no error; the parameters differ.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["karpathy/build-nanogpt#30"],
    tags=["reducer", "accumulation", "ddp"],
)
def no_sync_around_half_of_the_step(rank: int) -> None:
    """Accumulate two micro-batches, the forwards under `no_sync`, the last backward outside."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        model(torch.randn(8, 10)).square().mean().backward()
        loss = model(torch.randn(8, 10)).square().mean()
    loss.backward()
    optimizer.step()  # found here


@repairs(no_sync_around_half_of_the_step)
def repaired(rank: int) -> None:
    """The last micro-batch runs outside, forward and backward."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        model(torch.randn(8, 10)).square().mean().backward()
    loss = model(torch.randn(8, 10)).square().mean()
    loss.backward()
    optimizer.step()
