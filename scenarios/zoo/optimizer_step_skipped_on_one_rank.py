"""One rank finds an infinite gradient before it is reduced, and skips the optimizer step alone.

From then on it computes with older parameters than the others. Real gloo shows no error.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def found_inf(rank: int, step: int) -> torch.Tensor:
    """1 where the loss scaler of a rank finds an infinite value: on rank 1 in the second step."""
    return torch.tensor(float(rank == 1 and step == 1))


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=1),
    reports=["dylanyunlon/Neuron_SP#2", "pytorch/pytorch#76282"],
    tags=["ddp", "optimizer", "control-flow"],
)
def optimizer_step_skipped_on_one_rank(rank: int) -> None:
    """Each rank goes by what it finds itself."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        if not found_inf(rank, step):
            optimizer.step()  # found here


@repairs(optimizer_step_skipped_on_one_rank)
def repaired(rank: int) -> None:
    """If any rank finds one, all skip."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        found = found_inf(rank, step)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        if not found:
            optimizer.step()
