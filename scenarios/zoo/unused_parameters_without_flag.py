"""A branch that one rank does not take: its bucket is never complete there, and the others wait for it.

The rank itself learns of it one step later, when DDP refuses its next forward; that error leads the report. With
`find_unused_parameters=True` the same program passes.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


class OptionalBranch(torch.nn.Module):
    """A layer, and another one that not every batch goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.always = torch.nn.Linear(10, 10)
        self.sometimes = torch.nn.Linear(10, 10)

    def forward(self, batch: torch.Tensor, use_branch: bool) -> torch.Tensor:
        """The sum of the layers that are used."""
        answer: torch.Tensor = self.always(batch)
        return answer + self.sometimes(batch) if use_branch else answer


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=["pytorch/pytorch#20125", "lhotse-speech/lhotse#554"],
    tags=["ddp", "reducer"],
)
def unused_parameters_without_flag(rank: int) -> None:
    """Train both layers, but only the first one on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(OptionalBranch())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10), use_branch=rank != 1).square().mean().backward()  # found here
        optimizer.step()


@repairs(unused_parameters_without_flag)
def repaired(rank: int) -> None:
    """With `find_unused_parameters=True` DDP looks for what takes no part, and does not wait for its gradients."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(OptionalBranch(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10), use_branch=rank != 1).square().mean().backward()
        optimizer.step()
