"""Joins of models with communication hooks or buffer hooks."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, odd_one_out, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def train(model: torch.nn.Module, batches: torch.Tensor) -> None:
    """One step for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def steps_alone(world_size: int) -> Snapshot:
    """As all ranks have the same batches, the mean over those with input is what one process has."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    train(model, torch.eye(4))
    return snapshot(model)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=CLEAN,
    tags=["ddp", "join", "hooks", "oracle"],
    reference=steps_alone,
)
def join_divisor_ignored_by_communication_hook(rank: int) -> Snapshot:
    """The join should divide by the ranks that still have input, and with a communication hook it divides by all of them.

    Torch's wrapper leaves the division to a hook once there is one, and hooks divide by the size of the group, so
    divide_by_initial_world_size=False is silently ignored; real gloo shows no error. Engine "ddp" makes up for the
    divisor.
    """
    # Register the hook that does what the wrapper does without one.
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model.register_comm_hook(None, allreduce_hook)
    with model.join(divide_by_initial_world_size=False):  # found here
        train(model, torch.eye(4)[:2] if rank == 1 else torch.eye(4))
    return snapshot(model.module)


@repairs(join_divisor_ignored_by_communication_hook)
def join_divisor_ignored_by_communication_hook_repaired(rank: int) -> Snapshot:
    """A hook of one's own divides by the ranks that have input, of which each counts 1 until its loop is over."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    count = torch.ones(1)

    def average(count: torch.Tensor, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        work = dist.all_reduce(torch.cat([count * bucket.buffer(), count]), async_op=True)
        return work.get_future().then(  # type: ignore[no-any-return]
            lambda future: future.value()[0][:-1] / future.value()[0][-1]
        )

    model.register_comm_hook(count, average)
    with model.join():
        train(model, torch.eye(4)[:2] if rank == 1 else torch.eye(4))
        count.zero_()
    return snapshot(model.module)


def network() -> torch.nn.Module:
    """One with batch norm."""
    return torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))


def average_statistics(model: Any, *, when: str) -> None:
    """Let running statistics be the mean of all ranks', before or after each forward."""
    if hasattr(model, "register_buffer_comm_hook"):  # engine "ddp": by name, and it knows how to average
        for name in ("1.running_mean", "1.running_var"):
            model.register_buffer_comm_hook(name, "mean", when=when)
        return

    def average(state: None, buffers: dict[str, torch.Tensor]) -> None:
        for name in ("1.running_mean", "1.running_var"):
            dist.all_reduce(buffers[name])
            buffers[name] /= dist.get_world_size()

    location = _BufferCommHookLocation.POST_FORWARD if when == "after" else _BufferCommHookLocation.PRE_FORWARD
    model._register_buffer_comm_hook(None, average, location)


@scenario(
    expected=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#65436", "pytorch/pytorch#64513"],
    tags=["ddp", "join", "buffers", "hooks"],
)
def join_with_post_forward_buffer_hook(rank: int) -> None:
    """A hook averages the buffers after each forward, and a rank that has joined does not take part in that.

    Torch's join makes up for the synchronisation of buffers before a forward only, so the average meets a call of
    join: on real gloo a process aborts. Under engine "ddp" joined ranks take part, and add nothing.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    average_statistics(model, when="after")
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()  # found here


@repairs(join_with_post_forward_buffer_hook)
def join_with_post_forward_buffer_hook_repaired(rank: int) -> None:
    """The hook runs before each forward, where join calls it, too, if with old statistics."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    average_statistics(model, when="before")
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()


def average(weight: torch.Tensor, buffers: dict[str, torch.Tensor]) -> None:
    """The hook: the mean over the ranks, by weight."""
    total = torch.cat([weight * buffers["running_mean"], weight])
    dist.all_reduce(total)
    buffers["running_mean"].copy_(total[0] / total[1])


def train_averaging(rank: int, *, weighs_when_joined: float) -> Snapshot:
    """Rank 1 has two batches, the others have four; the mean of each is the rank."""
    weight = torch.ones(1)
    model = DistributedDataParallel(torch.nn.BatchNorm1d(1, momentum=0.5))
    if hasattr(model, "register_buffer_comm_hook"):  # engine "ddp" has averages of its own
        model.register_buffer_comm_hook("running_mean", "mean", when="before")  # type: ignore[operator]
    else:
        model._register_buffer_comm_hook(weight, average, _BufferCommHookLocation.PRE_FORWARD)
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.tensor([[rank - 1.0], [rank + 1.0]])).square().mean().backward()
        weight.fill_(weighs_when_joined)
    return snapshot(model.module)


def average_alone(world_size: int) -> Snapshot:
    """Half of the average before the last batch, and half of that batch, if only ranks with input are averaged."""
    mean, others = 0.0, [0, *range(2, world_size)]
    for present in ([1, *others], others, others):
        mean = (mean + sum(present) / len(present)) / 2
    return Snapshot({}, {"running_mean": torch.tensor([(mean + others[-1]) / 2])}, {})


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#65436"],
    tags=["ddp", "join", "buffers", "hooks", "oracle"],
    reference=average_alone,
)
def join_with_pre_forward_buffer_hook(rank: int) -> Snapshot:
    """A hook averages a buffer before each forward, and a rank that has joined keeps adding its old one.

    Torch's join calls the hook on joined ranks as well, where it cannot tell: all agree on a wrong average, and
    real gloo shows no error. Engine "ddp" leaves joined ranks out of its averages.
    """
    # A rank weighs as much after its loop as before.
    return train_averaging(rank, weighs_when_joined=1.0)


@repairs(join_with_pre_forward_buffer_hook)
def join_with_pre_forward_buffer_hook_repaired(rank: int) -> Snapshot:
    """A rank weighs nothing once its loop is over, which is when join begins to call the hook for it."""
    return train_averaging(rank, weighs_when_joined=0.0)
