"""Two wrapped models run backward in another order on one rank, each in a process group of its own, and all wait.

Groups of their own keep the gradients apart, but a backward ends only when its reductions do: each side waits for the
other in another group. Real gloo: all ranks wait, for half an hour unless `new_group` is given a time-out.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#18953"],
    tags=["reducer", "groups", "ddp"],
)
def two_wrapped_models_in_their_own_groups(rank: int) -> None:
    """Rank 1 trains the critic first, the others the actor."""
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 1), process_group=dist.new_group())
    critic = DistributedDataParallel(torch.nn.Linear(10, 1), process_group=dist.new_group())
    for model in (critic, actor) if rank == 1 else (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(two_wrapped_models_in_their_own_groups)
def repaired(rank: int) -> None:
    """Every rank trains the actor first."""
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 1), process_group=dist.new_group())
    critic = DistributedDataParallel(torch.nn.Linear(10, 1), process_group=dist.new_group())
    for model in (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()
