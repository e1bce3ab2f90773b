"""A loss is read before the wait, and looks right: another call came between, and calls of a group come in order.

On one group and one machine the sum is there by then. On a backend with threads or streams of its own it need not be.
Poisoned, the tensor shows that no wait came before: it holds NaN until then.
"""

import math

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank), reports=["NVIDIA/physicsnemo#1761"], tags=["raw"], poison=True
)
def async_result_hidden_by_a_later_call(rank: int) -> float:
    """Average a loss, and stop the training if it is no number."""
    total = torch.tensor([float(rank)])
    work = dist.all_reduce(total, async_op=True)
    dist.barrier()
    mean = _checked(total.item() / dist.get_world_size())
    work.wait()
    return mean


@repairs(async_result_hidden_by_a_later_call)
def repaired(rank: int) -> float:
    """The rank waits before it reads."""
    total = torch.tensor([float(rank)])
    work = dist.all_reduce(total, async_op=True)
    dist.barrier()
    work.wait()
    return _checked(total.item() / dist.get_world_size())


def _checked(loss: float) -> float:
    if not math.isfinite(loss):
        raise FloatingPointError(f"loss is {loss}, stopping training")  # found here
    return loss
