"""Different collectives meet: one rank goes to the barrier after the epoch while the others average their losses.

Backends pair calls by their order within the group, not by their name: gloo blocks here until its time-out.
"""

import torch
import torch.distributed as dist

from scenarios.model import Expectation, Scenario
from simulator import Code, Verdict


def program(rank: int) -> float:
    """Average a loss over the ranks; rank 1 believes there is nothing to average."""
    loss = torch.tensor([float(rank)])
    has_validation_data = rank != 1
    if has_validation_data:
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
    dist.barrier()
    return loss.item()


SCENARIO = Scenario(
    name="mismatched-collective",
    summary="one rank skips an all_reduce, so its barrier meets the others' all_reduce",
    program=program,
    # With two ranks there is no majority, so nobody can be blamed alone.
    expected=Expectation(Verdict.FAIL, Code.MISMATCH_OPERATION, lambda world_size: (1,) if world_size > 2 else (0, 1)),
    tags=("mismatch",),
)
