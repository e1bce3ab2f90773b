"""A hook averages the buffers after each forward, and a rank that has joined does not take part in that.

Torch's join makes up for the synchronisation of buffers before a forward only, so the average meets a call of join: on
real gloo a process aborts. Under engine "ddp" joined ranks take part, and add nothing.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


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
    """Train on 4 batches, and on 2 on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    average_statistics(model, when="after")
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()  # found here


@repairs(join_with_post_forward_buffer_hook)
def repaired(rank: int) -> None:
    """The hook runs before each forward, where join calls it, too, if with old statistics."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    average_statistics(model, when="before")
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()
