"""A rank whose share of the parameters got no gradient leaves the optimizer's step before its gather.

Each rank updates its share, and all are put together afterwards. Real gloo: the gather meets the rank's next call,
and all time out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def step(shares: list[torch.Tensor], rank: int, gradient: torch.Tensor | None, *, returns_early: bool) -> None:
    """Update the own share and gather all."""
    if gradient is not None:
        shares[rank] -= 0.1 * gradient
    elif returns_early:
        return
    dist.all_gather(shares, shares[rank].clone())


def train(rank: int, *, returns_early: bool) -> None:
    """One step in which the experts of rank 1 saw no token."""
    shares = [torch.ones(2) for _ in range(dist.get_world_size())]
    step(shares, rank, None if rank == 1 else torch.ones(2), returns_early=returns_early)
    dist.barrier()  # found here


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=1),
    reports=["facebookresearch/optimizers#149"],
    tags=["optimizer", "control-flow"],
    min_world_size=3,
)
def sharded_step_left_without_gradients(rank: int) -> None:
    """Leave the step where there is nothing to do."""
    train(rank, returns_early=True)


@repairs(sharded_step_left_without_gradients)
def repaired(rank: int) -> None:
    """Gather in any case."""
    train(rank, returns_early=False)
