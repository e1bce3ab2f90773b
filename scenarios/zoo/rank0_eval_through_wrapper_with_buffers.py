"""Rank 0 evaluates through the wrapper: its forward broadcasts the buffers, while the others wait in a barrier.

A forward synchronises buffers in evaluation and under `no_grad`, too. On gloo broadcast and barrier wait for their
time-outs; a model without buffers gets away with it.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def train() -> DistributedDataParallel:
    """Train a model that keeps running statistics."""
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return model


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(0)),
    reports=[
        "pytorch/pytorch#54059",
        "jpata/particleflow#233",
        "LibreYOLO/libreyolo#594",
        "pytorch/pytorch#89716",
    ],
    tags=["ddp", "control-flow", "buffers"],
)
def rank0_eval_through_wrapper_with_buffers(rank: int) -> None:
    """Train, let rank 0 validate, and continue together."""
    torch.manual_seed(rank)
    model = train()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            model(torch.randn(8, 4))  # found here
    dist.barrier()


@repairs(rank0_eval_through_wrapper_with_buffers)
def repaired(rank: int) -> None:
    """Rank 0 evaluates the inner module, which communicates nothing."""
    torch.manual_seed(rank)
    model = train()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            model.module(torch.randn(8, 4))
    dist.barrier()
