"""Counts per class meet in different lengths: a rank whose labels lack the last classes passes a shorter vector.

`torch.bincount` makes as many elements as the largest label asks for. Real gloo aborts the process of a rank that
expected fewer bytes, without any exception, and its peers see a closed connection.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario

CLASSES = 4


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["NVIDIA/nccl#1417", "NVIDIA/nccl#1394", "pytorch/gloo#456", "AdvancedPhotonSource/pty-chi#47"],
    tags=["raw"],
)
def allreduce_numel_differs(rank: int) -> list[int]:
    """Count the labels of all ranks; rank 1 has none of the last two classes."""
    labels = torch.tensor([0, 1, 1] if rank == 1 else [0, 1, 2, 3])
    counts = torch.bincount(labels)
    dist.all_reduce(counts)  # found here
    return [int(count) for count in counts]


@repairs(allreduce_numel_differs)
def repaired(rank: int) -> list[int]:
    """Every rank counts all classes, those that it has not seen, too."""
    labels = torch.tensor([0, 1, 1] if rank == 1 else [0, 1, 2, 3])
    counts = torch.bincount(labels, minlength=CLASSES)
    dist.all_reduce(counts)
    return [int(count) for count in counts]
