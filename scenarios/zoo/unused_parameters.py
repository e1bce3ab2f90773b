"""Unused parameters that differ by rank: with `find_unused_parameters=True` the ranks agree on which rank used what."""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, scenario


class TwoHeads(torch.nn.Module):
    """A body with two heads, of which a batch uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(10, 10)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(10, 1), torch.nn.Linear(10, 1)])

    def forward(self, batch: torch.Tensor, head: int) -> torch.Tensor:
        """The answer of one head."""
        answer: torch.Tensor = self.heads[head](self.body(batch))
        return answer


@scenario(expected=CLEAN, tags=["ddp", "unused"])
def unused_parameters(rank: int) -> list[float]:
    """Train head 0 on even ranks and head 1 on odd ones; all ranks end with the same parameters."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10), head=rank % 2).square().mean().backward()
        optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
