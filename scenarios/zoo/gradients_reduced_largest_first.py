"""Each rank reduces its largest gradients first, and which are largest depends on its batch.

Parameters of one shape are averaged with others. All replicas get the same wrong sums only by chance: here the ranks
that go another way apply the gradient of one layer to the next.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_ORIGIN, ranks=1), tags=["raw"], min_world_size=3)
def gradients_reduced_largest_first(rank: int) -> None:
    """Average the gradients of two layers of one shape by hand."""
    model = _trained_once(rank)
    for parameter in sorted(model.parameters(), key=_smallness):
        dist.all_reduce(parameter.grad)  # found here


@repairs(gradients_reduced_largest_first)
def repaired(rank: int) -> None:
    """All ranks go through the parameters in the order of the model."""
    model = _trained_once(rank)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def _smallness(parameter: torch.Tensor) -> float:
    assert parameter.grad is not None
    return -float(parameter.grad.norm())


def _trained_once(rank: int) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False) for _ in range(2)])
    first, second = (3.0, 1.0) if rank != 1 else (1.0, 3.0)
    (first * model[0](torch.ones(1, 2)).sum() + second * model[1](torch.ones(1, 2)).sum()).backward()
    return model
