"""Joins of several models or optimizers: which ones are covered, and in which order."""

from collections.abc import Sequence

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, odd_one_out, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, join_model_snapshots, snapshot


def alone(world_size: int) -> Snapshot:
    """A step of all ranks, then one of those that have a second batch, which is all but rank 1."""
    models = [torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)]
    for model in models:
        torch.nn.init.constant_(model.weight, 1 - 0.1 - 0.1)  # a gradient of 1 on each rank, so 1 on average
    return join_model_snapshots({str(index): snapshot(model) for index, model in enumerate(models)})


def train(models: Sequence[DistributedDataParallel], batches: int) -> None:
    """Each model makes its whole step in turn."""
    for _ in range(batches):
        for model in models:
            model.zero_grad()
            model(torch.ones(1, 1)).mean().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()


def wrapped() -> list[DistributedDataParallel]:
    """Two models of one weight, which is 1."""
    models = [DistributedDataParallel(torch.nn.Linear(1, 1, bias=False)) for _ in range(2)]
    for model in models:
        torch.nn.init.ones_(model.module.weight)
    return models


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=CLEAN,
    tags=["ddp", "join", "oracle"],
    reference=alone,
)
def join_divides_first_model_only(rank: int) -> Snapshot:
    """Two models join with divide_by_initial_world_size=False, and only the first one's gradients are divided that way.

    In torch's join only the first model announces its forward, and the number of ranks present comes back with
    that; the others divide by the world size. All ranks agree, so nothing shows but the numbers. Our engine asks
    for each model.
    """
    models = wrapped()
    with Join([*models], divide_by_initial_world_size=False):  # found here by torch
        train(models, 1 if rank == 1 else 2)
    return join_model_snapshots({str(index): snapshot(model.module) for index, model in enumerate(models)})


@repairs(join_divides_first_model_only)
def join_divides_first_model_only_repaired(rank: int) -> Snapshot:
    """Each model is the first of a join of its own."""
    models = wrapped()
    for model in models:
        with Join([model], divide_by_initial_world_size=False):
            train([model], 1 if rank == 1 else 2)
    return join_model_snapshots({str(index): snapshot(model.module) for index, model in enumerate(models)})


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#54318", "pytorch/tutorials#1610"],
    tags=["ddp", "join"],
)
def join_does_not_cover_all_joinables(rank: int) -> None:
    """Two wrapped models train in one loop, and the join is that of one of them.

    A rank that has joined makes up for the calls of the first model only, and those of the second one meet them: on
    real gloo a process aborts, or all wait. Engine "ddp" refuses the second model's forward on every rank.
    """
    torch.manual_seed(rank)
    first = DistributedDataParallel(torch.nn.Linear(4, 1))
    second = DistributedDataParallel(torch.nn.Linear(4, 2))
    with first.join():  # found here by torch
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            first(batch).square().mean().backward()
            second(batch).square().mean().backward()  # found here


@repairs(join_does_not_cover_all_joinables)
def join_does_not_cover_all_joinables_repaired(rank: int) -> None:
    """Join both, in the order in which they communicate."""
    torch.manual_seed(rank)
    first = DistributedDataParallel(torch.nn.Linear(4, 1))
    second = DistributedDataParallel(torch.nn.Linear(4, 2))
    with Join([first, second]):
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            first(batch).square().mean().backward()
            second(batch).square().mean().backward()


def models(rank: int) -> tuple[DistributedDataParallel, DistributedDataParallel]:
    """Two, of different sizes."""
    torch.manual_seed(rank)
    return DistributedDataParallel(torch.nn.Linear(4, 1)), DistributedDataParallel(torch.nn.Linear(4, 2))


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)),
    under_ddp=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)),
    tags=["ddp", "join"],
)
def join_list_in_other_order(rank: int) -> None:
    """A join is given two wrapped models in another order than the loop trains them in.

    Torch's join makes up for the calls of its models one after the other, in the order of the list, so those of one
    model meet those of the other: on real gloo all wait until a time-out. The same holds for models of engine "ddp"
    under torch's Join; its own, `ddp.Join`, follows the others in any order.
    """
    first, second = models(rank)
    with Join([second, first]):  # found here
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            first(batch).square().mean().backward()  # found here
            second(batch).square().mean().backward()


@repairs(join_list_in_other_order)
def join_list_in_other_order_repaired(rank: int) -> None:
    """The list has the order of the loop."""
    first, second = models(rank)
    with Join([first, second]):
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            first(batch).square().mean().backward()
            second(batch).square().mean().backward()


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    under_ddp=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#54318"],
    tags=["ddp", "join"],
)
def join_with_chained_models(rank: int) -> None:
    """Inside the join the output of one wrapped model is the input of another, so their calls are nested.

    Torch's join makes up for one model after the other, each with its forward and backward, but here the second
    one's come between: on real gloo a process aborts. The same holds for models of engine "ddp" under torch's Join;
    its own, `ddp.Join`, follows the others in any order.
    """
    torch.manual_seed(rank)
    encoder = DistributedDataParallel(torch.nn.Linear(4, 3))
    head = DistributedDataParallel(torch.nn.Linear(3, 1))
    with Join([encoder, head]):  # found here
        for _ in range(2 if rank == 1 else 4):
            head(encoder(torch.randn(8, 4))).square().mean().backward()  # found here


@repairs(join_with_chained_models)
def join_with_chained_models_repaired(rank: int) -> None:
    """One wrapper holds both."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)))
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()
