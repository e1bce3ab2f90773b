"""Each rank reduces towards itself: `dst` names the one rank that gets the sum, not the place of the caller's result.

On real gloo some ranks return numbers, and the others fail or wait. Even when used rightly, the tensor of a rank that
is not the destination may be left half written.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_ROOT, ranks=every_rank), reports=["pytorch/pytorch#76527"], tags=["raw"])
def reduce_to_different_ranks(rank: int) -> float:
    """Add up the losses; every rank wants the sum."""
    loss = torch.tensor([float(rank)])
    dist.reduce(loss, dst=rank)  # found here
    return loss.item()


@repairs(reduce_to_different_ranks)
def repaired(rank: int) -> float:
    """Where every rank wants the sum, it takes all_reduce."""
    loss = torch.tensor([float(rank)])
    dist.all_reduce(loss)
    return loss.item()
