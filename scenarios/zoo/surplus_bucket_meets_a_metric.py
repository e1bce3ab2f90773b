"""A rank has one batch more, and its gradient bucket meets the others' metric, which has as many numbers.

Backends pair by order and size. Real gloo: adds a gradient to the metric, and the rank fails or waits long after, in
another call.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def average_steps(rank: int, steps: int) -> None:
    """Train, and reduce a metric of one number."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    for _ in range(steps):
        model(torch.ones(1, 1)).sum().backward()
    dist.all_reduce(torch.full((1,), 100.0))  # found here


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=1),
    reports=["pytorch/pytorch#141069"],
    tags=["ddp", "loop"],
    min_world_size=3,
)
def surplus_bucket_meets_a_metric(rank: int) -> None:
    """Four steps; rank 1 has three."""
    average_steps(rank, 3 if rank == 1 else 4)


@repairs(surplus_bucket_meets_a_metric)
def repaired(rank: int) -> None:
    """As many steps for all."""
    average_steps(rank, 3)
