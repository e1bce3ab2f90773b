"""A layer is used on no rank, and the only step of a run trains on gradients that were not averaged.

The layer shares a bucket with the rest, which therefore stays open. Real gloo: no error before the next forward, so
a run of one step (a smoke test, a checkpoint after it) ends with replicas that differ.
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


class WithAuxiliaryHead(torch.nn.Module):
    """A head, and a second one that is not asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(10, 1)
        self.auxiliary = torch.nn.Linear(10, 1)

    def forward(self, batch: Tensor) -> Tensor:
        """The answer of the first head."""
        answer: Tensor = self.head(batch)
        return answer


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["pytorch/pytorch#128949", "pytorch/pytorch#112152"],
    tags=["reducer", "ddp"],
)
def unused_on_all_ranks_single_step(rank: int) -> None:
    """One step."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(WithAuxiliaryHead())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 10)).square().mean().backward()
    optimizer.step()  # found here


@repairs(unused_on_all_ranks_single_step)
def repaired(rank: int) -> None:
    """The wrapper looks for unused parameters."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(WithAuxiliaryHead(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 10)).square().mean().backward()
    optimizer.step()
