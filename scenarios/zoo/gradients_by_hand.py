"""Gradients that are reduced by hand, without the wrapper, in another order on one rank."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


class Branches(torch.nn.Module):
    """Two branches of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.images = torch.nn.Linear(3, 1, bias=False)
        self.texts = torch.nn.Linear(3, 1, bias=False)

    def losses(self, rank: int) -> list[torch.Tensor]:
        """One of each branch, in the order in which the rank's data needs them."""
        images, texts = self.images(torch.ones(2, 3)).sum(), self.texts(torch.ones(4, 3)).sum()
        return [texts, images] if rank == 1 else [images, texts]


def alone(world_size: int) -> Snapshot:
    """The gradients of all ranks' losses."""
    torch.manual_seed(0)
    model = Branches()
    for rank in range(world_size):
        sum(model.losses(rank), torch.zeros(())).backward()
    return snapshot(model, gradients=True)


def reduce(parameter: torch.Tensor) -> None:
    """Add up one gradient over the ranks."""
    dist.all_reduce(parameter.grad)  # found here


@scenario(
    expected=finds(Code.DIVERGENCE_GRADIENTS, ranks=every_rank),
    reports=["deepspeedai/DeepSpeed#2343", "pytorch/pytorch#64629"],
    tags=["reducer", "hooks", "oracle"],
    reference=alone,
)
def buckets_in_gradient_ready_order(rank: int) -> Snapshot:
    """A hand-written engine reduces each gradient as soon as it is there, and one rank's come in another order.

    Reductions meet by order and size: here each rank adds the gradient of one branch to that of the other. Real
    gloo shows no error. Torch's wrapper is safe, as it launches its buckets in one order, which rank 0 decides on.
    """
    torch.manual_seed(0)
    model = Branches()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(reduce)
    for loss in model.losses(rank):
        loss.backward()
    return snapshot(model, gradients=True)


@repairs(buckets_in_gradient_ready_order)
def buckets_in_gradient_ready_order_repaired(rank: int) -> Snapshot:
    """Reduce when all gradients are there, in the order of the parameters."""
    torch.manual_seed(0)
    model = Branches()
    for loss in model.losses(rank):
        loss.backward()
    for parameter in model.parameters():
        reduce(parameter)
    return snapshot(model, gradients=True)


@scenario(expected=finds(Code.MISMATCH_ORIGIN, ranks=1), tags=["raw"], min_world_size=3)
def gradients_reduced_largest_first(rank: int) -> None:
    """Each rank reduces its largest gradients first, and which are largest depends on its batch.

    Parameters of one shape are averaged with others. All replicas get the same wrong sums only by chance: here the
    ranks that go another way apply the gradient of one layer to the next.
    """
    # Average the gradients of two layers of one shape by hand.
    model = _trained_once(rank)
    for parameter in sorted(model.parameters(), key=_smallness):
        dist.all_reduce(parameter.grad)  # found here


@repairs(gradients_reduced_largest_first)
def gradients_reduced_largest_first_repaired(rank: int) -> None:
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
