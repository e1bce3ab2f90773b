"""The loss is reduced for rank 0's log, and every rank continues with what it finds in the tensor.

Only the destination of a reduce gets the sum. gloo leaves partial sums on the others, another one on each; NCCL leaves
what was there. All ranks agree, and no backend shows an error.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.HAZARD_UNDEFINED_RESULT, ranks=lambda world_size: tuple(range(1, world_size))),
    reports=["pytorch/pytorch#76527", "pytorch/pytorch#21480"],
    tags=["raw", "metrics"],
    poison=True,
)
def reduced_loss_used_on_every_rank(rank: int) -> float:
    """Return the mean loss over the ranks, on each of them."""
    loss = torch.tensor([1.0 + rank])
    dist.reduce(loss, dst=0)  # found here
    return loss.item() / dist.get_world_size()


@repairs(reduced_loss_used_on_every_rank)
def repaired(rank: int) -> float:
    """All ranks get the sum."""
    loss = torch.tensor([1.0 + rank])
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()
