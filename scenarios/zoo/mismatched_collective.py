"""Different collectives meet: one rank goes to the barrier after the epoch while the others average their losses.

Backends pair calls by their order within the group, not by their name: gloo blocks here until its time-out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#72843", "pytorch/pytorch#79901"],
    tags=["raw"],
)
def mismatched_collective(rank: int) -> float:
    """Average a loss over the ranks; rank 1 believes there is nothing to average."""
    loss = torch.tensor([float(rank)])
    has_validation_data = rank != 1
    if has_validation_data:
        dist.all_reduce(loss)  # found here
        loss /= dist.get_world_size()
    dist.barrier()  # found here
    return loss.item()


@repairs(mismatched_collective)
def repaired(rank: int) -> float:
    """Every rank takes part in the average; one without data adds no loss, and is not counted."""
    has_validation_data = rank != 1
    loss_and_count = torch.tensor([float(rank), 1.0]) if has_validation_data else torch.zeros(2)
    dist.all_reduce(loss_and_count)
    loss, count = loss_and_count.tolist()
    dist.barrier()
    return float(loss / count)
