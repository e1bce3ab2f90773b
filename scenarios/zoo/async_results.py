"""Asynchronous collectives whose result is read, changed or dropped before the wait."""

import math

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(expected=finds(Code.HAZARD_TENSOR_IN_FLIGHT, ranks=every_rank), tags=["raw"])
def async_result_changed_before_wait(rank: int) -> list[float]:
    """A sum is divided by the world size before it was waited for: the collective still reads and writes it.

    Whether that divides the rank's own share, the sum, or both depends on which rank came last. Real gloo moves
    data on threads of its own, so there either value may be sent or kept.
    """
    mean = torch.tensor([1.0, float(rank)])
    work = dist.all_reduce(mean, async_op=True)  # found here
    mean /= dist.get_world_size()
    work.wait()
    return [float(value) for value in mean]


@repairs(async_result_changed_before_wait)
def async_result_changed_before_wait_repaired(rank: int) -> list[float]:
    """The rank waits before it divides."""
    mean = torch.tensor([1.0, float(rank)])
    work = dist.all_reduce(mean, async_op=True)
    work.wait()
    mean /= dist.get_world_size()
    return [float(value) for value in mean]


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank), reports=["NVIDIA/physicsnemo#1761"], tags=["raw"], poison=True
)
def async_result_hidden_by_a_later_call(rank: int) -> float:
    """A loss is read before the wait, and looks right: another call came between, and calls of a group come in order.

    On one group and one machine the sum is there by then. On a backend with threads or streams of its own it need
    not be. Poisoned, the tensor shows that no wait came before: it holds NaN until then.
    """
    # Average a loss, and stop the training if it is no number.
    total = torch.tensor([float(rank)])
    work = dist.all_reduce(total, async_op=True)
    dist.barrier()
    mean = _checked(total.item() / dist.get_world_size())
    work.wait()
    return mean


@repairs(async_result_hidden_by_a_later_call)
def async_result_hidden_by_a_later_call_repaired(rank: int) -> float:
    """The rank waits before it reads."""
    total = torch.tensor([float(rank)])
    work = dist.all_reduce(total, async_op=True)
    dist.barrier()
    work.wait()
    return _checked(total.item() / dist.get_world_size())


def _checked(loss: float) -> float:
    if not math.isfinite(loss):
        raise FloatingPointError(f"loss is {loss}, stopping training")  # found here
    return loss


@scenario(expected=finds(Code.HAZARD_UNWAITED_WORK, ranks=every_rank), tags=["raw", "teardown"])
def async_result_never_waited_for(rank: int) -> None:
    """An all_reduce is launched and its handle thrown away: the rank ends, or logs, before the data has moved.

    Nothing ties the rank to the call any more. Real gloo moves data on threads of its own: a few numbers arrive in
    time, so that it is not noticed, until there is more to move.
    """
    for step in range(2):
        loss = torch.tensor([float(rank + step)])
        dist.all_reduce(loss, async_op=True)  # found here


@repairs(async_result_never_waited_for)
def async_result_never_waited_for_repaired(rank: int) -> None:
    """The handles are kept, and waited for at the end."""
    losses = [torch.tensor([float(rank + step)]) for step in range(2)]
    works = [dist.all_reduce(loss, async_op=True) for loss in losses]
    for work in works:
        work.wait()


def step_by_all_losses(rank: int, *, waits: bool) -> None:
    """Train one step, the slower the larger the losses of all ranks are."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    loss = model(torch.full((8, 10), rank + 1.0)).square().mean()
    loss.backward()
    total = loss.detach().clone()
    work = dist.all_reduce(total, async_op=True)
    if waits:
        work.wait()
    torch.optim.SGD(model.parameters(), lr=0.1 / (1.0 + total.item())).step()  # found here
    work.wait()


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["NVIDIA/physicsnemo#1761"],
    tags=["raw", "ddp"],
)
def async_result_read_before_wait(rank: int) -> None:
    """A reduced loss sets the learning rate before it was waited for: some ranks read the sum, others their own.

    What the tensor holds between launch and wait depends on which rank came last. On real gloo it is the old value
    at first and the new one later.
    """
    step_by_all_losses(rank, waits=False)


@repairs(async_result_read_before_wait)
def async_result_read_before_wait_repaired(rank: int) -> None:
    """The rank waits before it reads."""
    step_by_all_losses(rank, waits=True)
