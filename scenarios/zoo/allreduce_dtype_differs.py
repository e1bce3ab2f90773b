"""Integers meet floats: on a rank without batches the sum of its losses is the integer 0, and so is the whole tensor.

`torch.tensor` takes the element type from the values. Real gloo adds up the bytes of the one as if they were the other
where the sizes agree; where they do not, as here, it aborts the process of one rank.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)), reports=["pytorch/pytorch#60237"], tags=["raw"])
def allreduce_dtype_differs(rank: int) -> float:
    """Average the losses of all ranks; rank 1 had no batch."""
    losses = [] if rank == 1 else [0.5, 0.25]
    total = torch.tensor([sum(losses), len(losses)])
    dist.all_reduce(total)  # found here
    return float(total[0] / total[1])


@repairs(allreduce_dtype_differs)
def repaired(rank: int) -> float:
    """The element type is named, so it does not depend on the values."""
    losses = [] if rank == 1 else [0.5, 0.25]
    total = torch.tensor([sum(losses), len(losses)], dtype=torch.float32)
    dist.all_reduce(total)
    return float(total[0] / total[1])
