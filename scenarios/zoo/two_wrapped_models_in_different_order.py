"""Two wrapped models run backward in another order on one rank, and each gets the gradients of the other.

Reductions meet by order and size, not by model. Real gloo: no error on any rank, as the models are of one size; each
rank adds the actor's gradients to the critic's.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#18953", "Lightning-AI/pytorch-lightning#20866"],
    tags=["reducer", "ddp"],
)
def two_wrapped_models_in_different_order(rank: int) -> None:
    """Rank 1 trains the critic first, the others the actor."""
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 1))
    critic = DistributedDataParallel(torch.nn.Linear(10, 1))
    for model in (critic, actor) if rank == 1 else (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(two_wrapped_models_in_different_order)
def repaired(rank: int) -> None:
    """Every rank trains the actor first."""
    torch.manual_seed(rank)
    actor = DistributedDataParallel(torch.nn.Linear(10, 1))
    critic = DistributedDataParallel(torch.nn.Linear(10, 1))
    for model in (actor, critic):
        model(torch.randn(8, 10)).square().mean().backward()
