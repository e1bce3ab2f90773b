"""Two wrapped models whose backwards run in another order on one rank."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#18953", "Lightning-AI/pytorch-lightning#20866"],
    tags=["reducer", "ddp"],
)
def two_wrapped_models_in_different_order(rank: int) -> None:
    """Two wrapped models run backward in another order on one rank, and each gets the gradients of the other.

    Reductions meet by order and size, not by model. Real gloo: no error on any rank, as the models are of one size;
    each rank adds the actor's gradients to the critic's.
    """
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 1))
    critic = DistributedDataParallel(torch.nn.Linear(10, 1))
    for model in (critic, actor) if rank == 1 else (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(two_wrapped_models_in_different_order)
def two_wrapped_models_in_different_order_repaired(rank: int) -> None:
    """Every rank trains the actor first."""
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 1))
    critic = DistributedDataParallel(torch.nn.Linear(10, 1))
    for model in (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#18953"],
    tags=["reducer", "groups", "ddp"],
)
def two_wrapped_models_in_their_own_groups(rank: int) -> None:
    """Two wrapped models run backward in another order on one rank, each in a process group of its own, and all wait.

    Groups of their own keep the gradients apart, but a backward ends only when its reductions do: each side waits
    for the other in another group. Real gloo: all ranks wait, for half an hour unless `new_group` is given a
    time-out.
    """
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 1), process_group=dist.new_group())
    critic = DistributedDataParallel(torch.nn.Linear(10, 1), process_group=dist.new_group())
    for model in (critic, actor) if rank == 1 else (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(two_wrapped_models_in_their_own_groups)
def two_wrapped_models_in_their_own_groups_repaired(rank: int) -> None:
    """Every rank trains the actor first."""
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 1), process_group=dist.new_group())
    critic = DistributedDataParallel(torch.nn.Linear(10, 1), process_group=dist.new_group())
    for model in (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#18953", "Lightning-AI/pytorch-lightning#20866"],
    tags=["reducer", "ddp"],
)
def two_wrapped_models_of_different_sizes(rank: int) -> None:
    """Two wrapped models of different sizes run backward in another order on one rank.

    Reductions meet by order, so the buckets that meet have different sizes. Real gloo: the process that expects
    less aborts without an exception, and its peers see a reset connection.
    """
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 4))
    critic = DistributedDataParallel(torch.nn.Linear(10, 1))
    for model in (critic, actor) if rank == 1 else (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(two_wrapped_models_of_different_sizes)
def two_wrapped_models_of_different_sizes_repaired(rank: int) -> None:
    """Every rank trains the actor first."""
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 4))
    critic = DistributedDataParallel(torch.nn.Linear(10, 1))
    for model in (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()
