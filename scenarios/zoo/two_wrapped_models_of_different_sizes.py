"""Two wrapped models of different sizes run backward in another order on one rank.

Reductions meet by order, so the buckets that meet have different sizes. Real gloo: the process that expects less aborts
without an exception, and its peers see a reset connection.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#18953", "Lightning-AI/pytorch-lightning#20866"],
    tags=["reducer", "ddp"],
)
def two_wrapped_models_of_different_sizes(rank: int) -> None:
    """Rank 1 trains the critic first, the others the actor."""
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 4))
    critic = DistributedDataParallel(torch.nn.Linear(10, 1))
    for model in (critic, actor) if rank == 1 else (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(two_wrapped_models_of_different_sizes)
def repaired(rank: int) -> None:
    """Every rank trains the actor first."""
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 4))
    critic = DistributedDataParallel(torch.nn.Linear(10, 1))
    for model in (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()
