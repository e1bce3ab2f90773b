"""One rank registers two layers of the same shape in another order, and their values are swapped there.

Parameters are compared and sent by position, not by name. Real gloo: no error on any rank; rank 1 trains the encoder
with the decoder's weights and gradients. Our engine compares the names, and every rank raises.
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


class Autoencoder(torch.nn.ModuleDict):
    """Two layers of the same shape, registered in the order of their names."""

    def __init__(self, names: list[str]) -> None:
        super().__init__({name: torch.nn.Linear(10, 10) for name in names})

    def forward(self, batch: Tensor) -> Tensor:
        """The batch, encoded and decoded."""
        answer: Tensor = self["decoder"](torch.relu(self["encoder"](batch)))
        return answer


def train(rank: int, names: list[str]) -> None:
    """Two steps with the layers in the order of `names`."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Autoencoder(names))  # found here by ddp
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()  # found here by torch


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(1)),
    under_ddp=finds(Code.RANK_ERROR, ranks=odd_one_out(1)),
    tags=["wrapping", "ddp"],
)
def parameters_in_other_order_at_wrap(rank: int) -> None:
    """Take the layers in an order of the rank's own, as iterating over a set of names may give."""
    train(rank, ["decoder", "encoder"] if rank == 1 else ["encoder", "decoder"])


@repairs(parameters_in_other_order_at_wrap)
def repaired(rank: int) -> None:
    """Every rank registers the layers in one order."""
    train(rank, sorted(["decoder", "encoder"]))
