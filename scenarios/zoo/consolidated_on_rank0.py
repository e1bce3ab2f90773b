"""Rank 0 collects sharded optimizer state where it writes the checkpoint, which takes every rank.

Each rank has its own part of the state and sends it to rank 0. Real gloo: rank 0 waits for parts, the others are in a
barrier, and all time out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def optimizer() -> "torch.distributed.optim.ZeroRedundancyOptimizer":
    """Over the parameters of a small network, after a step."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    sharded = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    sharded.step()
    return sharded


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=0),
    reports=["pytorch/pytorch#60285", "pytorch/pytorch#54736"],
    tags=["optimizer", "checkpoint", "control-flow"],
    min_world_size=3,
)
def consolidated_on_rank0(rank: int) -> None:
    """Collect on rank 0, and meet."""
    sharded = optimizer()
    if rank == 0:
        sharded.consolidate_state_dict(to=0)  # found here
    dist.barrier()


@repairs(consolidated_on_rank0)
def repaired(rank: int) -> None:
    """All ranks take part, and one writes."""
    optimizer().consolidate_state_dict(to=0)
    dist.barrier()
