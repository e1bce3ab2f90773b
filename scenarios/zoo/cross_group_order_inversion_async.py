"""Two groups are used in two orders by asynchronous calls: that passes on CPUs, and can hang where a device runs them.

Launching does not block here, so all calls meet and real gloo gives right results. On a GPU each rank's calls may run
one after another in the order of launch, and then each one waits for the other.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.HAZARD_GROUP_ORDER, ranks=odd_one_out(1)),
    reports=["NVIDIA/Megatron-LM#6616", "NVIDIA/nccl#574"],
    tags=["groups"],
)
def cross_group_order_inversion_async(rank: int) -> None:
    """Reduce in two groups of the same ranks at once; rank 1 launches in the other order."""
    everybody = list(range(dist.get_world_size()))
    groups = [dist.new_group(everybody), dist.new_group(everybody)]
    order = reversed(groups) if rank == 1 else groups
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in order]  # found here
    for work in works:
        work.wait()


@repairs(cross_group_order_inversion_async)
def repaired(rank: int) -> None:
    """Every rank launches in the order in which the groups were made."""
    everybody = list(range(dist.get_world_size()))
    groups = [dist.new_group(everybody), dist.new_group(everybody)]
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in groups]
    for work in works:
        work.wait()
