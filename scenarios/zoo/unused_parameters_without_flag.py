"""A branch that one rank does not take: its bucket is never complete there, and the others wait for it.

The rank itself learns of it one step later, when DDP refuses its next forward; that error leads the report. With
`find_unused_parameters=True` the same program passes.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from scenarios.model import Expectation, Scenario
from simulator import Code, Verdict


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


def program(rank: int) -> None:
    """Train both layers, but only the first one on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(OptionalBranch())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10), use_branch=rank != 1).square().mean().backward()
        optimizer.step()


SCENARIO = Scenario(
    name="unused-parameters-without-flag",
    summary="one rank skips a branch of the model, and its gradients are never reduced",
    program=program,
    expected=Expectation(Verdict.FAIL, Code.RANK_ERROR, (1,)),
    tags=("ddp", "unused"),
)
