"""Different reductions meet: one rank asks for the maximum, the others for the sum.

Backends do not compare this. Real gloo raises nothing: of so small a tensor every rank gets the sum, of a larger one
part is summed, and part the maximum.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_REDUCTION, ranks=odd_one_out(1)), tags=["raw", "mismatch"])
def mismatched_reduction(rank: int) -> list[float]:
    """Reduce two numbers over the ranks, with MAX on rank 1 and SUM elsewhere."""
    statistics = torch.tensor([1.0, float(rank)])
    dist.all_reduce(statistics, op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)  # found here
    return [float(value) for value in statistics]


@repairs(mismatched_reduction)
def repaired(rank: int) -> list[float]:
    """Every rank asks for the sum."""
    statistics = torch.tensor([1.0, float(rank)])
    dist.all_reduce(statistics, op=dist.ReduceOp.SUM)
    return [float(value) for value in statistics]
