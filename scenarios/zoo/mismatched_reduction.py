"""Different reductions meet: one rank asks for the maximum, the others for the sum.

Backends do not compare this: gloo returns the sum on every rank, without a word.
"""

import torch
import torch.distributed as dist

from scenarios.model import Expectation, Scenario
from simulator import Code, Verdict


def program(rank: int) -> list[float]:
    """Reduce two numbers over the ranks, with MAX on rank 1 and SUM elsewhere."""
    statistics = torch.tensor([1.0, float(rank)])
    dist.all_reduce(statistics, op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
    return [float(value) for value in statistics]


SCENARIO = Scenario(
    name="mismatched-reduction",
    summary="one rank reduces with MAX, the others with SUM",
    program=program,
    # With two ranks there is no majority, so nobody can be blamed alone.
    expected=Expectation(Verdict.FAIL, Code.MISMATCH_REDUCTION, lambda world_size: (1,) if world_size > 2 else (0, 1)),
    tags=("mismatch",),
)
