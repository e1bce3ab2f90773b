"""Ranks that skip a batch, or an error in it, and continue with the next one."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, odd_one_out, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def train_through_error(rank: int, *, goes_on: bool) -> None:
    """Three steps; the second of rank 1 fails before its backward."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    for step in range(3):
        loss = model(torch.randn(8, 10)).square().mean()
        try:
            if (rank, step) == (1, 1):
                raise torch.OutOfMemoryError("out of memory")
        except torch.OutOfMemoryError:
            if goes_on:
                continue
            loss = 0 * loss
        loss.backward()  # found here
    dist.barrier()


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=1),
    reports=["facebookresearch/fairseq#3989", "facebookresearch/fairseq#708", "facebookresearch/fairseq#1359"],
    tags=["ddp", "control-flow"],
    min_world_size=3,
)
def exception_swallowed_in_the_loop(rank: int) -> None:
    """A rank swallows an error in one step and continues with its next batch: from there on it is one step late.

    Handlers that skip a batch are common, and right on one device. Real gloo: adds up gradients of different steps,
    and times out in the barrier.
    """
    train_through_error(rank, goes_on=True)


@repairs(exception_swallowed_in_the_loop)
def exception_swallowed_in_the_loop_repaired(rank: int) -> None:
    """The rank takes part in the step, with a loss that weighs nothing."""
    train_through_error(rank, goes_on=False)


def few_numbers(rank: int, step: int) -> Tensor:
    """A few numbers; on rank 1 the batch of step 1 is broken."""
    broken = rank == step == 1
    return torch.full((4, 1), torch.nan) if broken else torch.linspace(-1, 1, 4).unsqueeze(1) + rank + step


def alone(world_size: int) -> Snapshot:
    """The same training in one process: a step on the batches of all ranks, unless one of them is broken."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        samples = torch.cat([few_numbers(rank, step) for rank in range(world_size)])
        if not samples.isnan().any():
            model(samples).square().mean().backward()
            optimizer.step()
    return snapshot(model)


def train_without_broken(rank: int, *, decided_by_all: bool) -> Snapshot:
    """Train on 3 batches, without those that give no number."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(few_numbers(rank, step)).square().mean()
        skip = torch.isnan(loss).int()
        if decided_by_all:
            dist.all_reduce(skip, op=dist.ReduceOp.MAX)
        else:
            dist.broadcast(skip, src=0)  # found here
        if not skip:
            loss.backward()
            optimizer.step()
    return snapshot(model.module)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["ecmwf/WeatherGenerator#2724", "ecmwf/WeatherGenerator#2718"],
    tags=["ddp", "control-flow", "oracle"],
    reference=alone,
)
def nan_skip_decided_by_rank0_only(rank: int) -> Snapshot:
    """All ranks skip a batch together, but only rank 0's loss decides: a NaN elsewhere goes into the average.

    The ranks make the same calls and stay equal, with NaN in every parameter. Gloo has nothing to object to.
    """
    return train_without_broken(rank, decided_by_all=False)


@repairs(nan_skip_decided_by_rank0_only)
def nan_skip_decided_by_rank0_only_repaired(rank: int) -> Snapshot:
    """A batch is skipped if the loss of any rank is no number."""
    return train_without_broken(rank, decided_by_all=True)


def batch(rank: int, step: int) -> Tensor:
    """Random numbers; on rank 1 the batch of step 2 is broken."""
    samples = torch.randn(8, 10)
    return samples * float("nan") if rank == 1 and step == 2 else samples


def train_on_numbers(rank: int, *, agrees: bool) -> None:
    """Train on 5 batches, without those that give no number."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(batch(rank, step)).square().mean()
        is_valid = torch.tensor(int(not torch.isnan(loss)))
        if agrees:
            dist.all_reduce(is_valid, op=dist.ReduceOp.MIN)
        if is_valid:
            optimizer.zero_grad()
            loss.backward()  # found here
            optimizer.step()


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)),
    reports=[
        "pytorch/audio#3749",
        "NVIDIA-NeMo/Automodel#2468",
        "ai2cm/ace#850",
        "Lightning-AI/pytorch-lightning#5243",
        "Lightning-AI/pytorch-lightning#19918",
    ],
    tags=["ddp", "control-flow"],
)
def nan_skip_on_one_rank(rank: int) -> None:
    """One rank skips a batch whose loss is NaN: from there on its gradients are averaged with those of other steps.

    Reductions pair by their order, so the next batch of that rank goes with the skipped one of the others. Gloo
    adds them up without a word; only in the last step the others wait for a rank that is done.
    """
    train_on_numbers(rank, agrees=False)


@repairs(nan_skip_on_one_rank)
def nan_skip_on_one_rank_repaired(rank: int) -> None:
    """The ranks agree: if the loss of one of them is no number, all skip the batch."""
    train_on_numbers(rank, agrees=True)


def network() -> torch.nn.Module:
    """A layer, normalised by running statistics, which are buffers."""
    return torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.BatchNorm1d(4))


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    reports=["pytorch/audio#3749", "Lightning-AI/pytorch-lightning#19918"],
    tags=["ddp", "control-flow", "buffers"],
)
def nan_skip_with_buffers(rank: int) -> None:
    """One rank skips a batch whose loss is NaN: the buffers of its next forward meet the gradients of the others.

    Without buffers the same bug would average gradients of different steps in silence. On gloo broadcast and
    all-reduce wait for their time-outs.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(batch(rank, step)).square().mean()  # found here
        if torch.isnan(loss):
            continue
        optimizer.zero_grad()
        loss.backward()  # found here
        optimizer.step()


@repairs(nan_skip_with_buffers)
def nan_skip_with_buffers_repaired(rank: int) -> None:
    """A broken batch is replaced by zeros and its loss weighted by zero: forward and backward happen all the same."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        samples = batch(rank, step)
        is_valid = bool(torch.isfinite(samples).all())
        loss = model(samples if is_valid else torch.zeros_like(samples)).square().mean()
        optimizer.zero_grad()
        (loss if is_valid else 0.0 * loss).backward()
        optimizer.step()
