"""Communication hooks that fail, compress, or leave out a division."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, odd_one_out, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot

Errors = dict[int | torch.Tensor, torch.Tensor]


def samples(rank: int) -> torch.Tensor:
    """The rank's own, as many on each."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))


def alone(world_size: int) -> Snapshot:
    """The gradient of the mean loss over all samples."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model(torch.cat([samples(rank) for rank in range(world_size)])).square().mean().backward()
    return snapshot(model, gradients=True)


def summed_gradients(rank: int, divisor: int) -> Snapshot:
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
    """A communication hook of one's own sums the gradients, and leaves out the division by the number of ranks.

    With a hook registered the wrapper no longer divides. Every step is larger by the number of ranks; all ranks
    agree, and real gloo shows no error.
    """
    return summed_gradients(rank, divisor=1)


@repairs(communication_hook_without_division)
def communication_hook_without_division_repaired(rank: int) -> Snapshot:
    """The hook divides by the number of ranks."""
    return summed_gradients(rank, divisor=dist.get_world_size())


@scenario(
    expected=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#60237"],
    tags=["raw", "hooks", "ddp"],
)
def compression_hook_on_one_rank(rank: int) -> None:
    """A hook that compresses gradients is registered on one rank only: its half-precision bucket meets float32.

    The hook was an option of the launch command, and one machine was started without the change. Real gloo aborts
    the process of the rank that expected fewer bytes; the error of its peers speaks of a connection, not of the
    hook.
    """
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    if rank == 1:
        model.register_comm_hook(None, fp16_compress_hook)
    model(torch.ones(8, 10)).square().mean().backward()  # found here


@repairs(compression_hook_on_one_rank)
def compression_hook_on_one_rank_repaired(rank: int) -> None:
    """Every rank registers the hook."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model.register_comm_hook(None, fp16_compress_hook)
    model(torch.ones(8, 10)).square().mean().backward()


class Backwards(torch.nn.Sequential):
    """Runs its layers in the reverse of the order in which they are registered."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The last layer comes first."""
        return self[0](self[1](batch))  # type: ignore[no-any-return]


def train_compressed(parts_of: Callable[[Any], Errors]) -> None:
    """Three steps, whose gradients are averaged in float16; what that loses of each part goes to the next step's."""

    def hook(errors: Errors, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        for key, gradient in parts_of(bucket).items():
            if key in errors:
                gradient += errors[key]  # found here
            errors[key] = gradient - gradient.half()
        work = dist.all_reduce(bucket.buffer().half() / dist.get_world_size(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0].float())  # type: ignore[no-any-return]

    module = Backwards(torch.nn.Linear(3, 1), torch.nn.Linear(4, 3))
    model = DistributedDataParallel(module, bucket_cap_mb=1e-5)
    model.register_comm_hook({}, hook)
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#51427"],
    tags=["ddp", "hooks", "reducer"],
)
def compression_state_before_bucket_rebuild(rank: int) -> None:
    """A compressing hook keeps one error per bucket from the first iteration on, and then the buckets change.

    After the first iteration the wrapper forms its buckets anew, in the order in which gradients came, so a bucket
    of the same index has another size. Real gloo shows the same error, on every rank.
    """
    train_compressed(lambda bucket: {bucket.index(): bucket.buffer()})


@repairs(compression_state_before_bucket_rebuild)
def compression_state_before_bucket_rebuild_repaired(rank: int) -> None:
    """Keep errors by parameter."""
    train_compressed(lambda bucket: dict(zip(bucket.parameters(), bucket.gradients(), strict=True)))


def checking_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Refuse gradients that are no numbers, and average the others."""
    if not torch.isfinite(bucket.buffer()).all():
        raise ValueError("a gradient is no number")  # found here
    return allreduce_hook(group, bucket)


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=["Lightning-AI/pytorch-lightning#6430"],
    tags=["ddp", "control-flow", "hooks"],
)
def exception_in_communication_hook(rank: int) -> None:
    """One rank raises inside its communication hook: its bucket is never reduced, and the others wait for it.

    On gloo the rank's exception comes out of its backward, and the others report an error of their hook's future,
    which says nothing about the first.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model.register_comm_hook(dist.group.WORLD, checking_hook)
    for step in range(3):
        batch = torch.randn(8, 10)
        model(batch / 0 if rank == 1 and step == 2 else batch).square().mean().backward()


def replacing_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Count gradients that are no numbers as zero."""
    bucket.buffer().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return allreduce_hook(group, bucket)


@repairs(exception_in_communication_hook)
def exception_in_communication_hook_repaired(rank: int) -> None:
    """The hook reduces whatever comes, and only leaves out what is no number."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model.register_comm_hook(dist.group.WORLD, replacing_hook)
    for step in range(3):
        batch = torch.randn(8, 10)
        model(batch / 0 if rank == 1 and step == 2 else batch).square().mean().backward()
