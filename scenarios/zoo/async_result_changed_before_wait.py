"""A sum is divided by the world size before it was waited for: the collective still reads and writes it.

Whether that divides the rank's own share, the sum, or both depends on which rank came last. Real gloo moves data on
threads of its own, so there either value may be sent or kept.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(expected=finds(Code.HAZARD_TENSOR_IN_FLIGHT, ranks=every_rank), tags=["raw"])
def async_result_changed_before_wait(rank: int) -> list[float]:
    """Average two numbers over the ranks."""
    mean = torch.tensor([1.0, float(rank)])
    work = dist.all_reduce(mean, async_op=True)  # found here
    mean /= dist.get_world_size()
    work.wait()
    return [float(value) for value in mean]


@repairs(async_result_changed_before_wait)
def repaired(rank: int) -> list[float]:
    """The rank waits before it divides."""
    mean = torch.tensor([1.0, float(rank)])
    work = dist.all_reduce(mean, async_op=True)
    work.wait()
    mean /= dist.get_world_size()
    return [float(value) for value in mean]
