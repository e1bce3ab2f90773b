"""Every second optimizer step the ranks share a metric, and a rank that has skipped a step counts one less.

It continues with its next backward where the others share theirs, so a bucket meets a metric. Real gloo aborts a
process over such sizes.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def found_inf(rank: int, iteration: int) -> torch.Tensor:
    """1 where a rank finds an infinite gradient of its own: on rank 1 in the second iteration."""
    return torch.tensor(float(rank == 1 and iteration == 1))


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["dylanyunlon/Neuron_SP#2"],
    tags=["ddp", "optimizer", "control-flow"],
)
def collective_gated_by_step_count(rank: int) -> None:
    """Each rank goes by what it finds itself, and by its own count."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for iteration in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()  # found here
        if found_inf(rank, iteration):
            continue
        optimizer.step()
        steps += 1
        if steps % 2 == 0:
            dist.all_reduce(loss.detach())  # found here


@repairs(collective_gated_by_step_count)
def repaired(rank: int) -> None:
    """If any rank finds one, all skip, and so all counts are equal."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for iteration in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        found = found_inf(rank, iteration)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        if found:
            continue
        optimizer.step()
        steps += 1
        if steps % 2 == 0:
            dist.all_reduce(loss.detach())
