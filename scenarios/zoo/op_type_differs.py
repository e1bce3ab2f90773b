"""Two ways to share one number meet: the ranks reduce a scale, and one expects to receive it from rank 0.

One rank takes another branch, and its broadcast is the next call on the group where the others make an all_reduce.
On real gloo all of them wait until the time-out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#72843", "pytorch/pytorch#79901", "deepspeedai/DeepSpeed#8262"],
    tags=["raw", "control-flow"],
)
def op_type_differs(rank: int) -> float:
    """Agree on a scale, the largest one; on rank 1 nothing has overflowed, so it only asks for the result."""
    scale = torch.tensor([2.0**rank])
    has_overflowed = rank != 1
    if has_overflowed:
        dist.all_reduce(scale, op=dist.ReduceOp.MAX)  # found here
    else:
        dist.broadcast(scale, src=0)  # found here
    return scale.item()


@repairs(op_type_differs)
def repaired(rank: int) -> float:
    """Every rank brings its scale into the one reduction, whatever has happened to it."""
    scale = torch.tensor([2.0**rank])
    dist.all_reduce(scale, op=dist.ReduceOp.MAX)
    return scale.item()
