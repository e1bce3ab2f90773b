"""A layer is used twice under reentrant checkpointing, and its gradient is announced twice.

Each checkpoint runs a backward of its own inside the backward, and each of them finishes the layer's gradient. Real
gloo: every rank raises "mark a variable ready only once".
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


class Recurrent(torch.nn.Module):
    """A layer that runs twice, and keeps no activations."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(10, 10)
        self.layer = torch.nn.Linear(10, 10)
        self.use_reentrant = use_reentrant

    def forward(self, batch: Tensor) -> Tensor:
        """The batch, through the layer twice."""
        state: Tensor = self.embed(batch)
        for _ in range(2):
            state = checkpoint(self.layer, state, use_reentrant=self.use_reentrant)
        return state


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=[
        "pytorch/pytorch#24005",
        "huggingface/trl#835",
        "modelscope/ms-swift#3171",
        "lucidrains/DALLE2-pytorch#225",
    ],
    tags=["reducer", "ddp"],
)
def reentrant_checkpoint_reuses_layer(rank: int) -> None:
    """One forward and backward."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Recurrent(use_reentrant=True))
    model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(reentrant_checkpoint_reuses_layer)
def repaired(rank: int) -> None:
    """Checkpoints that are not reentrant stay inside the one backward."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Recurrent(use_reentrant=False))
    model(torch.randn(8, 10)).square().mean().backward()
