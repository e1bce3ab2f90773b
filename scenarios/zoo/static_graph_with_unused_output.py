"""A static graph counts an output that reaches no loss as used, and a later step is refused.

In the first iteration all outputs count; from the second on the unused one's parameters fire no hook, and their bucket
stays open. Real gloo: every rank raises in its third iteration. Our engine counts what got a gradient, and trains.
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario


class ValueAndUncertainty(torch.nn.Module):
    """Two heads that both answer."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Linear(10, 1)
        self.uncertainty = torch.nn.Linear(10, 1)

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Both answers."""
        return self.value(batch), self.uncertainty(batch)


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#79171", "pytorch/pytorch#97030"],
    tags=["reducer", "ddp"],
)
def static_graph_with_unused_output(rank: int) -> None:
    """Train the value, not the uncertainty."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(ValueAndUncertainty(), static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        value, _ = model(torch.randn(8, 10))  # found here
        value.square().mean().backward()
        optimizer.step()


@repairs(static_graph_with_unused_output)
def repaired(rank: int) -> None:
    """The head that is not trained is frozen before the model is wrapped."""
    torch.manual_seed(rank)
    module = ValueAndUncertainty()
    module.uncertainty.requires_grad_(False)
    model = DistributedDataParallel(module, static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        value, _ = model(torch.randn(8, 10))
        value.square().mean().backward()
        optimizer.step()
