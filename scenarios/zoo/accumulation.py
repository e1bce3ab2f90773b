"""Gradients that are accumulated over micro-batches, under `no_sync`."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario

MICRO_BATCHES = 3
WINDOW = 2


def train_in_windows(rank: int, *, syncs_last: bool) -> None:
    """Step after each second micro-batch, and at the end."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(MICRO_BATCHES):
        is_full, is_last = (i + 1) % WINDOW == 0, i == MICRO_BATCHES - 1
        with nullcontext() if is_full or (is_last and syncs_last) else model.no_sync():
            model(torch.randn(8, 10)).square().mean().backward()
        if is_full or is_last:
            optimizer.step()  # found here
            optimizer.zero_grad()


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["modelscope/FunASR#3472", "huggingface/picotron#5"],
    tags=["reducer", "accumulation", "ddp"],
)
def accumulation_window_off_by_one(rank: int) -> None:
    """The last window of an accumulation is short, and its only micro-batch stays under `no_sync`.

    The loop synchronises by the micro-batch's number and steps at the end of the data as well. Real gloo: no error;
    the parameters differ after the last step.
    """
    train_in_windows(rank, syncs_last=False)


@repairs(accumulation_window_off_by_one)
def accumulation_window_off_by_one_repaired(rank: int) -> None:
    """One condition decides when to synchronise and when to step."""
    train_in_windows(rank, syncs_last=True)


class Branches(nn.Module):
    """Two heads, of which a batch may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 1)
        self.right = nn.Linear(4, 1)

    def forward(self, batch: Tensor, *, both: bool) -> Tensor:
        """The sum of the heads in use."""
        output: Tensor = self.left(batch)
        return output + self.right(batch) if both else output


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    under_ddp=CLEAN,
    tags=["reducer", "accumulation", "unused", "ddp"],
)
def backward_skipped_before_no_sync(rank: int) -> None:
    """A forward whose backward is skipped keeps the reducer armed, so a backward under `no_sync` is reduced after all.

    A loss that is not finite is dropped, and a window of accumulation begins. With `find_unused_parameters` torch
    has marked what the dropped forward left out as ready, so the backward that now brings it a gradient raises; and
    what that backward leaves out on one rank alone, it waits for there, while the others continue. Our engine looks
    at both forwards.
    """
    # Drop the loss of the first batch, and accumulate the next two.
    torch.manual_seed(rank)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    model(torch.randn(8, 4), both=False)
    with model.no_sync():
        model(torch.randn(8, 4), both=True).sum().backward()  # found here by torch
    model(torch.randn(8, 4), both=True).sum().backward()


@repairs(backward_skipped_before_no_sync)
def backward_skipped_before_no_sync_repaired(rank: int) -> None:
    """The dropped loss runs its backward with weight 0, which uses the reduction up."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    (model(torch.randn(8, 4), both=False).sum() * 0).backward()
    with model.no_sync():
        model(torch.randn(8, 4), both=True).sum().backward()
    model(torch.randn(8, 4), both=True).sum().backward()


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["karpathy/build-nanogpt#30"],
    tags=["reducer", "accumulation", "ddp"],
)
def no_sync_around_half_of_the_step(rank: int) -> None:
    """Only the forward of the last micro-batch runs under `no_sync`, and its backward reduces nothing.

    Whether a backward reduces is decided in the forward before it: `no_sync` around the backward alone does
    nothing, around the forward alone all. Real gloo: no error; the parameters differ.
    """
    # Accumulate two micro-batches, the forwards under `no_sync`, the last backward outside.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        model(torch.randn(8, 10)).square().mean().backward()
        loss = model(torch.randn(8, 10)).square().mean()
    loss.backward()
    optimizer.step()  # found here


@repairs(no_sync_around_half_of_the_step)
def no_sync_around_half_of_the_step_repaired(rank: int) -> None:
    """The last micro-batch runs outside, forward and backward."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        model(torch.randn(8, 10)).square().mean().backward()
    loss = model(torch.randn(8, 10)).square().mean()
    loss.backward()
    optimizer.step()


def is_masked(rank: int, index: int) -> bool:
    """True for the first micro-batch of rank 1, an answer that was cut off."""
    return (rank, index) == (1, 0)


def train(rank: int, *, skips: bool) -> None:
    """Three windows of two micro-batches."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0
    for index in range(3 * WINDOW):
        weight = 0.0 if is_masked(rank, index) else 1.0
        if skips and not weight:
            continue
        done += 1
        with nullcontext() if done % WINDOW == 0 else model.no_sync():
            (weight * model(torch.randn(8, 10)).square().mean()).backward()
        if done % WINDOW == 0:
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()  # found here


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=1), tags=["accumulation", "control-flow", "ddp"], min_world_size=3
)
def skipped_by_the_loss_mask(rank: int) -> None:
    """A rank leaves micro-batches out whose tokens are all masked, counts only the others, and steps later than its peers.

    Its window ends on another micro-batch, so its bucket meets one of the others' next window. Real gloo: adds up
    what does not belong together, and times out at the end.
    """
    train(rank, skips=True)


@repairs(skipped_by_the_loss_mask)
def skipped_by_the_loss_mask_repaired(rank: int) -> None:
    """A masked micro-batch counts, with a loss of zero."""
    train(rank, skips=False)
