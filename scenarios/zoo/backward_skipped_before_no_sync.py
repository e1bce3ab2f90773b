"""A forward whose backward is skipped keeps the reducer armed, so a backward under `no_sync` is reduced after all.

A loss that is not finite is dropped, and a window of accumulation begins. With `find_unused_parameters` torch has
marked what the dropped forward left out as ready, so the backward that now brings it a gradient raises; and what that
backward leaves out on one rank alone, it waits for there, while the others continue. Our engine looks at both forwards.
"""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario


class Branches(nn.Module):
    """Two heads, of which a batch may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 1)
        self.right = nn.Linear(4, 1)

    def forward(self, batch: Tensor, *, both: bool) -> Tensor:
        """The sum of the heads in use."""
        output: Tensor = self.left(batch)
        return output + self.right(batch) if both else output


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    under_ddp=CLEAN,
    tags=["reducer", "accumulation", "unused", "ddp"],
)
def backward_skipped_before_no_sync(rank: int) -> None:
    """Drop the loss of the first batch, and accumulate the next two."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    model(torch.randn(8, 4), both=False)
    with model.no_sync():
        model(torch.randn(8, 4), both=True).sum().backward()  # found here by torch
    model(torch.randn(8, 4), both=True).sum().backward()


@repairs(backward_skipped_before_no_sync)
def repaired(rank: int) -> None:
    """The dropped loss runs its backward with weight 0, which uses the reduction up."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    (model(torch.randn(8, 4), both=False).sum() * 0).backward()
    with model.no_sync():
        model(torch.randn(8, 4), both=True).sum().backward()
    model(torch.randn(8, 4), both=True).sum().backward()
