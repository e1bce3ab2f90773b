"""A reduced loss sets the learning rate before it was waited for: some ranks read the sum, others their own.

What the tensor holds between launch and wait depends on which rank came last. On real gloo it is the old value at
first and the new one later.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["NVIDIA/physicsnemo#1761"],
    tags=["raw", "ddp"],
)
def async_result_read_before_wait(rank: int) -> None:
    """Train one step, the slower the larger the losses of all ranks are."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    loss = model(torch.full((8, 10), rank + 1.0)).square().mean()
    loss.backward()
    total = loss.detach().clone()
    work = dist.all_reduce(total, async_op=True)
    torch.optim.SGD(model.parameters(), lr=0.1 / (1.0 + total.item())).step()  # found here
    work.wait()


@repairs(async_result_read_before_wait)
def repaired(rank: int) -> None:
    """The rank waits before it reads."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    loss = model(torch.full((8, 10), rank + 1.0)).square().mean()
    loss.backward()
    total = loss.detach().clone()
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    torch.optim.SGD(model.parameters(), lr=0.1 / (1.0 + total.item())).step()
