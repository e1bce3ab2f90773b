"""Outputs that reach no loss, and static graphs."""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario


class ValueAndUncertainty(torch.nn.Module):
    """Two heads that both answer."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Linear(10, 1)
        self.uncertainty = torch.nn.Linear(10, 1)

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Both answers."""
        return self.value(batch), self.uncertainty(batch)


def train_value(rank: int, steps: int, *, trains_both: bool, static_graph: bool = False) -> None:
    """Train the value, not the uncertainty, which may be frozen before the model is wrapped."""
    torch.manual_seed(rank)
    module = ValueAndUncertainty()
    module.uncertainty.requires_grad_(trains_both)
    model = DistributedDataParallel(module, static_graph=static_graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        value, _ = model(torch.randn(8, 10))  # found here
        value.square().mean().backward()
        optimizer.step()


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#22436", "pytorch/pytorch#20586"],
    tags=["reducer", "ddp"],
)
def output_not_part_of_the_loss(rank: int) -> None:
    """A model returns two tensors, the loss uses one of them, and the second step is refused.

    The parameters behind the other tensor get no gradient, so their bucket stays open. Real gloo: every rank raises
    at its second forward; with `find_unused_parameters=True` it passes.
    """
    train_value(rank, 2, trains_both=True)


@repairs(output_not_part_of_the_loss)
def output_not_part_of_the_loss_repaired(rank: int) -> None:
    """The head that is not trained is frozen before the model is wrapped."""
    train_value(rank, 2, trains_both=False)


def train(rank: int, *, is_static: bool) -> None:
    """A window of two micro-batches."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1), static_graph=is_static)
    with model.no_sync():
        model(torch.randn(8, 10)).square().mean().backward()  # found here by torch
    model(torch.randn(8, 10)).square().mean().backward()


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#187732", "huggingface/accelerate#3679"],
    tags=["reducer", "accumulation", "ddp"],
)
def static_graph_with_no_sync(rank: int) -> None:
    """Gradients are accumulated under `no_sync` by a wrapper with a static graph, whose first backward has to see all.

    The first backward learns the graph, and under `no_sync` it learns nothing. Real gloo: torch's own assertion
    fails on all ranks.
    """
    train(rank, is_static=True)


@repairs(static_graph_with_no_sync)
def static_graph_with_no_sync_repaired(rank: int) -> None:
    """Without the promise."""
    train(rank, is_static=False)


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#79171", "pytorch/pytorch#97030"],
    tags=["reducer", "ddp"],
)
def static_graph_with_unused_output(rank: int) -> None:
    """A static graph counts an output that reaches no loss as used, and a later step is refused.

    In the first iteration all outputs count; from the second on the unused one's parameters fire no hook, and their
    bucket stays open. Real gloo: every rank raises in its third iteration. Our engine counts what got a gradient,
    and trains.
    """
    train_value(rank, 5, trains_both=True, static_graph=True)


@repairs(static_graph_with_unused_output)
def static_graph_with_unused_output_repaired(rank: int) -> None:
    """The head that is not trained is frozen before the model is wrapped."""
    train_value(rank, 5, trains_both=False, static_graph=True)


def targets(rank: int, step: int) -> Tensor:
    """Four targets; in step 1 there are none on rank 1."""
    return torch.zeros(0 if rank == 1 and step == 1 else 4, dtype=torch.long)


def train_on_targets(rank: int, *, keeps_graph: bool) -> None:
    """Two steps; the loss without targets is a zero made on the spot, or of the model's output."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 3), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        scores, wanted = model(torch.randn(8, 10)), targets(rank, step)  # found here by ddp
        optimizer.zero_grad()
        if len(wanted) > 0:
            loss = torch.nn.functional.cross_entropy(scores[: len(wanted)], wanted)
        else:
            loss = 0.0 * scores.sum() if keeps_graph else torch.zeros((), requires_grad=True)
        loss.backward()  # found here by torch
        optimizer.step()


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["pytorch/pytorch#23425", "pytorch/pytorch#40566", "Lightning-AI/pytorch-lightning#12190"],
    tags=["ddp", "control-flow"],
)
def zero_loss_detached_from_graph(rank: int) -> None:
    """A rank without targets returns a fresh zero as its loss: no gradient arrives there, and its bucket never starts.

    Backward runs and has nothing to do, so DDP is not informed; the search for unused parameters goes through the
    model's output, and finds none. On gloo that rank is done, unchanged, and the others see the connection close.
    """
    train_on_targets(rank, keeps_graph=False)


@repairs(zero_loss_detached_from_graph)
def zero_loss_detached_from_graph_repaired(rank: int) -> None:
    """The zero is made of the model's output, so the backward goes through every parameter."""
    train_on_targets(rank, keeps_graph=True)
