"""Two rules for one metric meet: one rank asks for the smallest loss of all ranks, the others for the largest.

Each rank reads from its own settings whether less is better. No backend compares this, torch's debug mode neither:
real gloo reduces a single number by one of the two rules, on every rank, and training stops too early or too late.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_REDUCTION, ranks=odd_one_out(1)), tags=["raw", "ddp"])
def reduce_op_differs(rank: int) -> float:
    """Train one step, then agree on the loss that decides whether to stop."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    loss = model(torch.full((8, 10), float(rank))).square().mean()
    loss.backward()
    decisive = loss.detach().clone()
    rule = dist.ReduceOp.MIN if rank == 1 else dist.ReduceOp.MAX
    dist.all_reduce(decisive, op=rule)  # found here
    return float(decisive)


@repairs(reduce_op_differs)
def repaired(rank: int) -> float:
    """One rule on every rank."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    loss = model(torch.full((8, 10), float(rank))).square().mean()
    loss.backward()
    decisive = loss.detach().clone()
    dist.all_reduce(decisive, op=dist.ReduceOp.MAX)
    return float(decisive)
