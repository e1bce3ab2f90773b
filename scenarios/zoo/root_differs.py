"""Two ranks believe that they are the source: one finds a leftover checkpoint on its disk and sends its own weights.

Each rank picks the source of the broadcast by looking at its own files. On real gloo both of two such ranks wait until
the time-out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_ROOT, ranks=odd_one_out(1)), reports=["pytorch/pytorch#76527"], tags=["raw"])
def root_differs(rank: int) -> list[float]:
    """Start from the checkpoint of rank 0; rank 1 has an old one, too."""
    has_checkpoint = rank in (0, 1)
    weights = torch.full((2,), float(rank))
    dist.broadcast(weights, src=rank if has_checkpoint else 0)  # found here
    return [float(weight) for weight in weights]


@repairs(root_differs)
def repaired(rank: int) -> list[float]:
    """The ranks agree on the source first: the lowest rank that has a checkpoint."""
    has_checkpoint = rank in (0, 1)
    weights = torch.full((2,), float(rank))
    source = torch.tensor(rank if has_checkpoint else dist.get_world_size())
    dist.all_reduce(source, op=dist.ReduceOp.MIN)
    dist.broadcast(weights, src=int(source))
    return [float(weight) for weight in weights]
