"""Each node resumes from the newest checkpoint that it finds itself, and one of them finds an older one.

Its disk was full, or the file is still being copied. Nothing that communicates depends on the step: schedules of
learning rate and data continue from different steps, and no backend notices. `agree` finds it at once.
"""

import torch
import torch.distributed as dist

from ddpsim import agree
from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_VALUE, ranks=(0, 1)),
    reports=["hiyouga/LlamaFactory#655"],
    tags=["raw", "checkpoint"],
    world_size=2,
    max_world_size=2,
)
def resumed_from_own_checkpoint(rank: int) -> float:
    """Resume, and take a step with the learning rate that goes with it."""
    step = agree("resumed step", _newest_found(rank))  # found here
    return _trained_once(step)


@repairs(resumed_from_own_checkpoint)
def repaired(rank: int) -> float:
    """All ranks take the newest step that every one of them has."""
    common = torch.tensor([_newest_found(rank)])
    dist.all_reduce(common, op=dist.ReduceOp.MIN)
    step = agree("resumed step", int(common.item()))
    return _trained_once(step)


def _newest_found(rank: int) -> int:
    return 600 if rank == 1 else 800


def _trained_once(step: int) -> float:
    gradient = torch.ones(1)
    dist.all_reduce(gradient)
    return float(gradient) / step
