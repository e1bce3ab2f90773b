"""The last batch is shorter on one rank, and `all_gather` assumes the same shape on all ranks.

Each rank makes room for answers of the size that it has itself. On real gloo the rank that expected fewer bytes aborts,
and the one that expected more may return a half-filled result without an error.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["Lightning-AI/pytorch-lightning#7773", "pytorch/xla#8660", "pytorch/pytorch#103305", "xljh0520/JOTR#4"],
    tags=["raw"],
)
def allgather_shape_differs(rank: int) -> list[float]:
    """Gather the predictions of all ranks: 5 of each, but 3 of rank 1."""
    predictions = torch.full((3 if rank == 1 else 5,), float(rank))
    gathered = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, predictions)  # found here
    return [float(value) for value in torch.cat(gathered)]


@repairs(allgather_shape_differs)
def repaired(rank: int) -> list[float]:
    """The sizes are gathered first; predictions are padded to the largest of them, and cut again."""
    predictions = torch.full((3 if rank == 1 else 5,), float(rank))
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(predictions)]))
    padded = torch.zeros(int(max(sizes)))
    padded[: len(predictions)] = predictions
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    return [float(value) for part, size in zip(gathered, sizes, strict=True) for value in part[: int(size)]]
