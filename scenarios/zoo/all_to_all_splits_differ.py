"""A rank expects as many rows from each rank as it sends itself, and the others send other numbers of rows.

Split i of what rank j expects has to be split j of what rank i sends. Real gloo aborts the
process of the rank that made too little room, and the others may return as if nothing were wrong.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_SPLITS, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#117486", "pytorch/pytorch#194559"],
    tags=["raw"],
)
def all_to_all_splits_differ(rank: int) -> list[float]:
    """Rank r sends r + 1 rows to each rank; rank 1 expects 2 of each."""
    world_size = dist.get_world_size()
    sent = [rank + 1] * world_size
    expected = sent if rank == 1 else [other + 1 for other in range(world_size)]
    rows, received = torch.full((sum(sent),), float(rank)), torch.empty(sum(expected))
    dist.all_to_all_single(received, rows, expected, sent)  # found here
    return [float(row) for row in received]


@repairs(all_to_all_splits_differ)
def repaired(rank: int) -> list[float]:
    """The ranks exchange how many rows will come."""
    world_size = dist.get_world_size()
    sent = torch.full((world_size,), rank + 1)
    expected = torch.empty_like(sent)
    dist.all_to_all_single(expected, sent)
    rows, received = torch.full((int(sent.sum()),), float(rank)), torch.empty(int(expected.sum()))
    dist.all_to_all_single(received, rows, expected.tolist(), sent.tolist())
    return [float(row) for row in received]
