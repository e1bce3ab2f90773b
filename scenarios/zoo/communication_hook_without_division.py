"""A communication hook of one's own sums the gradients, and leaves out the division by the number of ranks.

With a hook registered the wrapper no longer divides. Every step is larger by the number of ranks; all ranks agree, and
real gloo shows no error.
"""

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def samples(rank: int) -> torch.Tensor:
    """The rank's own, as many on each."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))


def alone(world_size: int) -> Snapshot:
    """The gradient of the mean loss over all samples."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model(torch.cat([samples(rank) for rank in range(world_size)])).square().mean().backward()
    return snapshot(model, gradients=True)


def train(rank: int, divisor: int) -> Snapshot:
    """One backward, whose gradients the hook sums and divides."""

    def hook(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        work = dist.all_reduce(bucket.buffer() / divisor, async_op=True)  # found here
        return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model.register_comm_hook(None, hook)
    model(samples(rank)).square().mean().backward()
    return snapshot(model.module, gradients=True)


@scenario(expected=finds(Code.DIVERGENCE_GRADIENTS, ranks=every_rank), tags=["ddp", "hooks", "oracle"], reference=alone)
def communication_hook_without_division(rank: int) -> Snapshot:
    """The sum as it is."""
    return train(rank, divisor=1)


@repairs(communication_hook_without_division)
def repaired(rank: int) -> Snapshot:
    """The hook divides by the number of ranks."""
    return train(rank, divisor=dist.get_world_size())
