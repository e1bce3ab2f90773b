"""One rank meets a broken sample and raises; the others wait for its gradients.

They do not learn that it has left. On gloo they see a closed connection, or a time-out whose message hides the cause.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def decode(rank: int, step: int) -> Tensor:
    """Read a batch; the one of rank 1 in step 2 cannot be read."""
    if rank == 1 and step == 2:
        raise ValueError("sample 17 is truncated")  # found here
    return torch.randn(8, 10)


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=[
        "Lightning-AI/pytorch-lightning#6430",
        "Red-Hat-AI-Innovation-Team/mini_trainer#60",
        "sgl-project/SpecForge#781",
    ],
    tags=["ddp", "control-flow"],
)
def exception_on_one_rank(rank: int) -> None:
    """Train on 3 batches."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        batch = decode(rank, step)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


@repairs(exception_on_one_rank)
def repaired(rank: int) -> None:
    """The rank catches its error, informs the others, and all of them stop with what they have."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        has_failed = torch.zeros(())
        try:
            batch = decode(rank, step)
        except ValueError:
            has_failed = torch.ones(())
        dist.all_reduce(has_failed, op=dist.ReduceOp.MAX)
        if has_failed:
            return
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
