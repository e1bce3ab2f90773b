"""Seven wrong programs that torch's own tools pass silently or report only by a time-out (PEERS.md, E1 and E4).

In each, rank 2 is the odd one out. Each comes with what has to be found: the code, the culprits at a world size of 3 or
more, and a piece of the line of the program that the culprit stands at. The zoo has such bugs as users met them, with
their repaired twins, under many schedules.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

ODD = 2


@dataclass(frozen=True)
class SilentCase:
    """One of the seven."""

    name: str
    wrong: Callable[[int], object]
    code: str
    line: str
    culprits: Callable[[int], tuple[int, ...]] = lambda world_size: (ODD,)


def operation(rank):
    tensor = torch.full((4,), 1.0 + rank)
    if rank == ODD:
        dist.broadcast(tensor, 0)  # the odd line
    else:
        dist.all_reduce(tensor)


def reduction(rank):
    dist.all_reduce(torch.full((4,), 1.0 + rank), dist.ReduceOp.MAX if rank == ODD else dist.ReduceOp.SUM)


def root(rank):
    dist.broadcast(torch.full((4,), 1.0 + rank), 1 if rank == ODD else 0)


def dtype(rank):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == ODD else torch.float32))


def shape(rank):
    dist.broadcast(torch.ones(5 if rank == ODD else 1), 0)


def skipped(rank):
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    if rank != ODD:
        dist.all_reduce(tensor)  # the odd line


def group_order(rank):
    groups = [dist.new_group(), dist.new_group()]
    for group in reversed(groups) if rank == ODD else groups:
        dist.all_reduce(torch.ones(4), group=group)


SILENT_CASES = (
    SilentCase("all_reduce meets broadcast", operation, "mismatch.operation", "dist.broadcast(tensor, 0)  # the"),
    SilentCase("SUM meets MAX", reduction, "mismatch.reduction", "dist.ReduceOp.MAX if rank"),
    SilentCase("different roots", root, "mismatch.root", "1 if rank == ODD else 0"),
    SilentCase("float32 meets float64", dtype, "mismatch.dtype", "torch.float64 if rank"),
    SilentCase("broadcast of 1 meets 5", shape, "mismatch.shape", "5 if rank == ODD"),
    SilentCase("a skipped call", skipped, "deadlock.missing_rank", "dist.all_reduce(tensor)"),
    SilentCase(
        "two groups in opposite order",
        group_order,
        "deadlock.cycle",
        "dist.all_reduce(torch.ones(4), group=group)",
        lambda world_size: (0, ODD),
    ),
)
