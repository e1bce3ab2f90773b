"""A model returns two tensors, the loss uses one of them, and the second step is refused.

The parameters behind the other tensor get no gradient, so their bucket stays open. Real gloo: every rank raises at its
second forward; with `find_unused_parameters=True` it passes.
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


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
    reports=["pytorch/pytorch#22436", "pytorch/pytorch#20586"],
    tags=["reducer", "ddp"],
)
def output_not_part_of_the_loss(rank: int) -> None:
    """Train the value, not the uncertainty."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(ValueAndUncertainty())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        value, _ = model(torch.randn(8, 10))  # found here
        value.square().mean().backward()
        optimizer.step()


@repairs(output_not_part_of_the_loss)
def repaired(rank: int) -> None:
    """The head that is not trained is frozen before the model is wrapped."""
    torch.manual_seed(rank)
    module = ValueAndUncertainty()
    module.uncertainty.requires_grad_(False)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        value, _ = model(torch.randn(8, 10))
        value.square().mean().backward()
        optimizer.step()
