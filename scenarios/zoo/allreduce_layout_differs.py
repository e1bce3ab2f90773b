"""Tensors of the same length and another shape meet: one rank has transposed its matrix, and no rank notices.

Backends move elements in memory order and count bytes, so rows are added to columns. Real gloo succeeds on every
rank, with wrong numbers.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["NVIDIA/nccl#1417", "NVIDIA/nccl#1394", "pytorch/gloo#456", "AdvancedPhotonSource/pty-chi#47"],
    tags=["raw"],
)
def allreduce_layout_differs(rank: int) -> list[float]:
    """Add up a table of 2 rows and 3 columns; rank 1 keeps it the other way round."""
    table = torch.arange(6.0).reshape(2, 3)
    if rank == 1:
        table = table.t().contiguous()
    dist.all_reduce(table)  # found here
    return [float(value) for value in table.flatten()]


@repairs(allreduce_layout_differs)
def repaired(rank: int) -> list[float]:
    """Rank 1 turns its table round before the sum, and back after it."""
    table = torch.arange(6.0).reshape(2, 3)
    own = table.t().contiguous() if rank == 1 else table
    shared = own.t().contiguous() if rank == 1 else own
    dist.all_reduce(shared)
    own = shared.t() if rank == 1 else shared
    return [float(value) for value in own.flatten()]
