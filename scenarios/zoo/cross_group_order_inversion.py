"""A pair of ranks and the whole world reduce in two orders: each of the two waits where the other one comes later.

Blocking calls on groups that share two ranks or more need one order. Real gloo hangs until the time-out; the ranks
outside the pair hang with them, though they have done nothing wrong.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["meta-pytorch/torchrec#4149", "NVIDIA/Megatron-LM#6616", "NVIDIA/nccl#195", "NVIDIA/nccl#574"],
    tags=["groups"],
)
def cross_group_order_inversion(rank: int) -> None:
    """Ranks 0 and 1 share a layer, all ranks a loss; rank 1 reduces the loss first."""
    pair = dist.new_group([0, 1])
    loss, layer = torch.ones(1), torch.ones(4)
    if rank == 0:
        dist.all_reduce(layer, group=pair)  # found here
    dist.all_reduce(loss)
    if rank == 1:
        dist.all_reduce(layer, group=pair)


@repairs(cross_group_order_inversion)
def repaired(rank: int) -> None:
    """Both reduce over the pair first."""
    pair = dist.new_group([0, 1])
    loss, layer = torch.ones(1), torch.ones(4)
    if rank in (0, 1):
        dist.all_reduce(layer, group=pair)
    dist.all_reduce(loss)
