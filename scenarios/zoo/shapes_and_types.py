"""Collectives whose tensors differ between the ranks in shape, element type, layout or split sizes."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario

CLASSES = 4


@scenario(
    expected=finds(Code.MISMATCH_SPLITS, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#117486", "pytorch/pytorch#194559"],
    tags=["raw"],
)
def all_to_all_splits_differ(rank: int) -> list[float]:
    """A rank expects as many rows from each rank as it sends itself, and the others send other numbers of rows.

    Split i of what rank j expects has to be split j of what rank i sends. Real gloo aborts the process of the rank
    that made too little room, and the others may return as if nothing were wrong.
    """
    # Rank r sends r + 1 rows to each rank; rank 1 expects 2 of each.
    world_size = dist.get_world_size()
    sent = [rank + 1] * world_size
    expected = sent if rank == 1 else [other + 1 for other in range(world_size)]
    rows, received = torch.full((sum(sent),), float(rank)), torch.empty(sum(expected))
    dist.all_to_all_single(received, rows, expected, sent)  # found here
    return [float(row) for row in received]


@repairs(all_to_all_splits_differ)
def all_to_all_splits_differ_repaired(rank: int) -> list[float]:
    """The ranks exchange how many rows will come."""
    world_size = dist.get_world_size()
    sent = torch.full((world_size,), rank + 1)
    expected = torch.empty_like(sent)
    dist.all_to_all_single(expected, sent)
    rows, received = torch.full((int(sent.sum()),), float(rank)), torch.empty(int(expected.sum()))
    dist.all_to_all_single(received, rows, expected.tolist(), sent.tolist())
    return [float(row) for row in received]


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["Lightning-AI/pytorch-lightning#7773", "pytorch/xla#8660", "pytorch/pytorch#103305", "xljh0520/JOTR#4"],
    tags=["raw"],
)
def allgather_shape_differs(rank: int) -> list[float]:
    """The last batch is shorter on one rank, and `all_gather` assumes the same shape on all ranks.

    Each rank makes room for answers of the size that it has itself. On real gloo the rank that expected fewer bytes
    aborts, and the one that expected more may return a half-filled result without an error.
    """
    predictions = torch.full((3 if rank == 1 else 5,), float(rank))
    gathered = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, predictions)  # found here
    return [float(value) for value in torch.cat(gathered)]


@repairs(allgather_shape_differs)
def allgather_shape_differs_repaired(rank: int) -> list[float]:
    """The sizes are gathered first; predictions are padded to the largest of them, and cut again."""
    predictions = torch.full((3 if rank == 1 else 5,), float(rank))
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(predictions)]))
    padded = torch.zeros(int(max(sizes)))
    padded[: len(predictions)] = predictions
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    return [float(value) for part, size in zip(gathered, sizes, strict=True) for value in part[: int(size)]]


@scenario(expected=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)), reports=["pytorch/pytorch#60237"], tags=["raw"])
def allreduce_dtype_differs(rank: int) -> float:
    """Integers meet floats: on a rank without batches the sum of its losses is the integer 0, and so is the whole tensor.

    `torch.tensor` takes the element type from the values. Real gloo adds up the bytes of the one as if they were
    the other where the sizes agree; where they do not, as here, it aborts the process of one rank.
    """
    losses = [] if rank == 1 else [0.5, 0.25]
    total = torch.tensor([sum(losses), len(losses)])
    dist.all_reduce(total)  # found here
    return float(total[0] / total[1])


@repairs(allreduce_dtype_differs)
def allreduce_dtype_differs_repaired(rank: int) -> float:
    """The element type is named, so it does not depend on the values."""
    losses = [] if rank == 1 else [0.5, 0.25]
    total = torch.tensor([sum(losses), len(losses)], dtype=torch.float32)
    dist.all_reduce(total)
    return float(total[0] / total[1])


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["NVIDIA/nccl#1417", "NVIDIA/nccl#1394", "pytorch/gloo#456", "AdvancedPhotonSource/pty-chi#47"],
    tags=["raw"],
)
def allreduce_layout_differs(rank: int) -> list[float]:
    """Tensors of the same length and another shape meet: one rank has transposed its matrix, and no rank notices.

    Backends move elements in memory order and count bytes, so rows are added to columns. Real gloo succeeds on
    every rank, with wrong numbers.
    """
    table = torch.arange(6.0).reshape(2, 3)
    if rank == 1:
        table = table.t().contiguous()
    dist.all_reduce(table)  # found here
    return [float(value) for value in table.flatten()]


@repairs(allreduce_layout_differs)
def allreduce_layout_differs_repaired(rank: int) -> list[float]:
    """Rank 1 turns its table round before the sum, and back after it."""
    table = torch.arange(6.0).reshape(2, 3)
    own = table.t().contiguous() if rank == 1 else table
    shared = own.t().contiguous() if rank == 1 else own
    dist.all_reduce(shared)
    own = shared.t() if rank == 1 else shared
    return [float(value) for value in own.flatten()]


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["NVIDIA/nccl#1417", "NVIDIA/nccl#1394", "pytorch/gloo#456", "AdvancedPhotonSource/pty-chi#47"],
    tags=["raw"],
)
def allreduce_numel_differs(rank: int) -> list[int]:
    """Counts per class meet in different lengths: a rank whose labels lack the last classes passes a shorter vector.

    `torch.bincount` makes as many elements as the largest label asks for. Real gloo aborts the process of a rank
    that expected fewer bytes, without any exception, and its peers see a closed connection.
    """
    labels = torch.tensor([0, 1, 1] if rank == 1 else [0, 1, 2, 3])
    counts = torch.bincount(labels)
    dist.all_reduce(counts)  # found here
    return [int(count) for count in counts]


@repairs(allreduce_numel_differs)
def allreduce_numel_differs_repaired(rank: int) -> list[int]:
    """Every rank counts all classes, those that it has not seen, too."""
    labels = torch.tensor([0, 1, 1] if rank == 1 else [0, 1, 2, 3])
    counts = torch.bincount(labels, minlength=CLASSES)
    dist.all_reduce(counts)
    return [int(count) for count in counts]
