"""Control: with throw_on_early_termination all ranks raise together as soon as the first one runs out of input.

That is what the option is for: it ends the loop everywhere by a RuntimeError, whose text differs between the rank that
ran out and the rest. Real gloo does the same. Caught on every rank, it is the end of the epoch.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=["pytorch/pytorch#47250", "pytorch/pytorch#56755"],
    tags=["ddp", "join"],
)
def join_throw_on_early_termination(rank: int) -> None:
    """Train on 4 batches, and on 2 on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join(throw_on_early_termination=True):  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()


@repairs(join_throw_on_early_termination)
def repaired(rank: int) -> torch.Tensor:
    """The error is caught, around the join."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    try:
        with model.join(throw_on_early_termination=True):
            for _ in range(2 if rank == 1 else 4):
                model(torch.randn(8, 4)).square().mean().backward()
    except RuntimeError:
        pass
    return model.module.weight.detach()  # type: ignore[no-any-return]
