"""Optimizer steps that one rank skips, scales or schedules by what it sees itself."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def found_inf(rank: int, step: int) -> torch.Tensor:
    """1 where the loss scaler of a rank finds an infinite value: on rank 1 in the second step."""
    return torch.tensor(float(rank == 1 and step == 1))


def may_step(rank: int, step: int, *, agrees: bool) -> bool:
    """Whether to make a step: by what the rank finds itself, or by what any rank finds."""
    found = found_inf(rank, step)
    if agrees:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return not found


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["dylanyunlon/Neuron_SP#2"],
    tags=["ddp", "optimizer", "control-flow"],
)
def collective_gated_by_step_count(rank: int) -> None:
    """Every second optimizer step the ranks share a metric, and a rank that has skipped a step counts one less.

    It continues with its next backward where the others share theirs, so a bucket meets a metric. Real gloo aborts
    a process over such sizes.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for iteration in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()  # found here
        if found_inf(rank, iteration):
            continue
        optimizer.step()
        steps += 1
        if steps % 2 == 0:
            dist.all_reduce(loss.detach())  # found here


@repairs(collective_gated_by_step_count)
def collective_gated_by_step_count_repaired(rank: int) -> None:
    """If any rank finds one, all skip, and so all counts are equal."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for iteration in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        if not may_step(rank, iteration, agrees=True):
            continue
        optimizer.step()
        steps += 1
        if steps % 2 == 0:
            dist.all_reduce(loss.detach())


def train_with_scale(rank: int, scale: float) -> None:
    """Two steps with a loss scale."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        (scale * loss).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= scale
        optimizer.step()  # found here


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#136009"],
    tags=["ddp", "optimizer"],
)
def loss_scale_differs(rank: int) -> None:
    """Each rank scales its loss by a factor of its own, and divides the averaged gradients by it.

    The gradients meet while they are scaled, so an average of numbers in several scales is divided by another one
    on each rank. Real gloo shows no error.
    """
    # Rank 1 has halved its scale after an overflow.
    train_with_scale(rank, scale=4.0 if rank == 1 else 8.0)


@repairs(loss_scale_differs)
def loss_scale_differs_repaired(rank: int) -> None:
    """The scale is the same everywhere."""
    train_with_scale(rank, scale=8.0)


def train_with_skips(rank: int, *, agrees: bool) -> None:
    """Three iterations."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        if may_step(rank, step, agrees=agrees):
            optimizer.step()  # found here


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=1),
    reports=["dylanyunlon/Neuron_SP#2", "pytorch/pytorch#76282"],
    tags=["ddp", "optimizer", "control-flow"],
)
def optimizer_step_skipped_on_one_rank(rank: int) -> None:
    """One rank finds an infinite gradient before it is reduced, and skips the optimizer step alone.

    From then on it computes with older parameters than the others. Real gloo shows no error.
    """
    train_with_skips(rank, agrees=False)


@repairs(optimizer_step_skipped_on_one_rank)
def optimizer_step_skipped_on_one_rank_repaired(rank: int) -> None:
    """If any rank finds one, all skip."""
    train_with_skips(rank, agrees=True)


def validation_loss(rank: int, epoch: int) -> torch.Tensor:
    """Falls from epoch to epoch, but not on rank 1's share of the data."""
    return torch.tensor(1.0 if rank == 1 else 1.0 / (epoch + 1))


def train_on_plateau(rank: int, *, sums_losses: bool) -> None:
    """Three epochs of one step, with a scheduler that goes by the validation loss."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    for epoch in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()  # found here
        loss = validation_loss(rank, epoch)
        if sums_losses:
            dist.all_reduce(loss)
        scheduler.step(loss.item())


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(1)),
    reports=["rmchurch/disruptcnn#3"],
    tags=["ddp", "optimizer"],
)
def schedule_follows_local_metric(rank: int) -> None:
    """A plateau rule lowers the learning rate by the rank's own validation loss, so not on all ranks at once.

    Gradients are equal, and the steps that they lead to are not. Real gloo shows no error.
    """
    train_on_plateau(rank, sums_losses=False)


@repairs(schedule_follows_local_metric)
def schedule_follows_local_metric_repaired(rank: int) -> None:
    """The losses are summed first."""
    train_on_plateau(rank, sums_losses=True)


def step(shares: list[torch.Tensor], rank: int, gradient: torch.Tensor | None, *, returns_early: bool) -> None:
    """Update the own share and gather all."""
    if gradient is not None:
        shares[rank] -= 0.1 * gradient
    elif returns_early:
        return
    dist.all_gather(shares, shares[rank].clone())


def train_experts(rank: int, *, returns_early: bool) -> None:
    """One step in which the experts of rank 1 saw no token."""
    shares = [torch.ones(2) for _ in range(dist.get_world_size())]
    step(shares, rank, None if rank == 1 else torch.ones(2), returns_early=returns_early)
    dist.barrier()  # found here


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=1),
    reports=["facebookresearch/optimizers#149"],
    tags=["optimizer", "control-flow"],
    min_world_size=3,
)
def sharded_step_left_without_gradients(rank: int) -> None:
    """A rank whose share of the parameters got no gradient leaves the optimizer's step before its gather.

    Each rank updates its share, and all are put together afterwards. Real gloo: the gather meets the rank's next
    call, and all time out.
    """
    train_experts(rank, returns_early=True)


@repairs(sharded_step_left_without_gradients)
def sharded_step_left_without_gradients_repaired(rank: int) -> None:
    """Gather in any case."""
    train_experts(rank, returns_early=False)
