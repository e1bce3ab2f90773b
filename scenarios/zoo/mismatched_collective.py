"""Different collectives meet: one rank goes to the barrier after the epoch while the others average their losses.

Backends pair calls by their order within the group, not by their name: gloo blocks here until its time-out.
"""

import torch
import torch.distributed as dist

from scenarios.model import finds, scenario
from simulator import Code


@scenario(
    about=__doc__,
    expected=finds(Code.MISMATCH_OPERATION, ranks=lambda world_size: (1,) if world_size > 2 else (0, 1)),
    reports=["pytorch/pytorch#72843", "pytorch/pytorch#79901"],
    tags=["mismatch"],
)
def mismatched_collective(rank: int) -> float:
    """Average a loss over the ranks; rank 1 believes there is nothing to average."""
    loss = torch.tensor([float(rank)])
    has_validation_data = rank != 1
    if has_validation_data:
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
    dist.barrier()
    return loss.item()
