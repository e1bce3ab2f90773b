"""Two groups in opposite order: each rank waits in a call of one group for a rank that waits in a call of the other.

Blocking calls on groups that share ranks need one order everywhere. Real gloo hangs until its time-out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["meta-pytorch/torchrec#4149", "NVIDIA/Megatron-LM#6616"],
    tags=["groups", "cycle"],
)
def group_order_inversion(rank: int) -> None:
    """Reduce over two groups of the same ranks: even ranks use the first group first, odd ranks the second."""
    everybody = list(range(dist.get_world_size()))
    first, second = dist.new_group(everybody), dist.new_group(everybody)
    for group in (first, second) if rank % 2 == 0 else (second, first):
        dist.all_reduce(torch.ones(2), group=group)  # found here


@repairs(group_order_inversion)
def repaired(rank: int) -> None:
    """All ranks use the first group first."""
    everybody = list(range(dist.get_world_size()))
    first, second = dist.new_group(everybody), dist.new_group(everybody)
    for group in (first, second):
        dist.all_reduce(torch.ones(2), group=group)
