"""Inside the join the loop reduces the loss for a log, and a rank that has joined does not make that call.

The loss has the very size of join's own "who is still here", so torch's join lets them meet and counts losses as ranks;
real gloo notices it later, if ever, by another size. Engine "ddp" lets the joined ranks make the call.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)), under_ddp=CLEAN, tags=["ddp", "join", "loop"])
def join_with_collective_in_the_loop(rank: int) -> list[float]:
    """Train on 4 batches, and on 2 on rank 1; reduce every loss."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    log = []
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            total = loss.detach().reshape(1)
            dist.all_reduce(total)  # found here
            log.append(total.item())
    return log


@repairs(join_with_collective_in_the_loop)
def repaired(rank: int) -> float:
    """The losses are added up on each rank, and reduced once after the join."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    total = torch.zeros(2)
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            total += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
