"""One rank skips a batch whose loss is NaN: from there on its gradients are averaged with those of other steps.

Reductions pair by their order, so the next batch of that rank goes with the skipped one of the others. Gloo adds them
up without a word; only in the last step the others wait for a rank that is done.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def batch(rank: int, step: int) -> Tensor:
    """Random numbers; on rank 1 the batch of step 2 is broken."""
    samples = torch.randn(8, 10)
    return samples * float("nan") if rank == 1 and step == 2 else samples


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)),
    reports=[
        "pytorch/audio#3749",
        "NVIDIA-NeMo/Automodel#2468",
        "ai2cm/ace#850",
        "Lightning-AI/pytorch-lightning#5243",
        "Lightning-AI/pytorch-lightning#19918",
    ],
    tags=["ddp", "control-flow"],
)
def nan_skip_on_one_rank(rank: int) -> None:
    """Train on 5 batches, without those that give no number."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(batch(rank, step)).square().mean()
        if torch.isnan(loss):
            continue
        optimizer.zero_grad()
        loss.backward()  # found here
        optimizer.step()


@repairs(nan_skip_on_one_rank)
def repaired(rank: int) -> None:
    """The ranks agree: if the loss of one of them is no number, all skip the batch."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(batch(rank, step)).square().mean()
        is_valid = torch.tensor(int(not torch.isnan(loss)))
        dist.all_reduce(is_valid, op=dist.ReduceOp.MIN)
        if not is_valid:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
