"""The model's forward makes a collective of its own, which a rank that has joined does not make for the others.

Torch's join makes up for the wrapper's calls only, so the model's all_reduce meets a call of join, of another size: on
real gloo one process aborts. Engine "ddp" announces each call to the ranks that have joined, and they make it as well.
"""

from contextlib import suppress

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


class Centred(torch.nn.Module):
    """A linear layer on what is left of a batch without the mean over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The prediction."""
        mean = batch.mean(dim=0)
        dist.all_reduce(mean)  # found here
        return self.linear(batch - mean / dist.get_world_size())  # type: ignore[no-any-return]


def train(rank: int, *, ends_together: bool) -> None:
    """On 4 batches, and on 2 on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Centred())
    with model.join(throw_on_early_termination=ends_together):  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#57448", "pytorch/pytorch#38174", "Lightning-AI/pytorch-lightning#3325"],
    tags=["ddp", "join"],
)
def join_with_collective_in_forward(rank: int) -> None:
    """Let a rank without input make up for the calls of the others."""
    train(rank, ends_together=False)


@repairs(join_with_collective_in_forward)
def repaired(rank: int) -> None:
    """All ranks end the loop when the first one runs out."""
    with suppress(RuntimeError):  # a rank ran out of input: the epoch is over, everywhere
        train(rank, ends_together=True)
