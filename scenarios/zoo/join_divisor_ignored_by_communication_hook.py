"""The join should divide by the ranks that still have input, and with a communication hook it divides by all of them.

Torch's wrapper leaves the division to a hook once there is one, and hooks divide by the size of the group, so
divide_by_initial_world_size=False is silently ignored; real gloo shows no error. Engine "ddp" makes up for the divisor.
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def train(model: torch.nn.Module, batches: torch.Tensor) -> None:
    """One step for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def alone(world_size: int) -> Snapshot:
    """As all ranks have the same batches, the mean over those with input is what one process has."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    train(model, torch.eye(4))
    return snapshot(model)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=CLEAN,
    tags=["ddp", "join", "hooks", "oracle"],
    reference=alone,
)
def join_divisor_ignored_by_communication_hook(rank: int) -> Snapshot:
    """Register the hook that does what the wrapper does without one."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model.register_comm_hook(None, allreduce_hook)
    with model.join(divide_by_initial_world_size=False):  # found here
        train(model, torch.eye(4)[:2] if rank == 1 else torch.eye(4))
    return snapshot(model.module)


@repairs(join_divisor_ignored_by_communication_hook)
def repaired(rank: int) -> Snapshot:
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
