"""A compressing hook keeps one error per bucket from the first iteration on, and then the buckets change.

After the first iteration the wrapper forms its buckets anew, in the order in which gradients came, so a bucket of the
same index has another size. Real gloo shows the same error, on every rank.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario

Errors = dict[int | torch.Tensor, torch.Tensor]


class Backwards(torch.nn.Sequential):
    """Runs its layers in the reverse of the order in which they are registered."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The last layer comes first."""
        return self[0](self[1](batch))  # type: ignore[no-any-return]


def train(parts_of: Callable[[Any], Errors]) -> None:
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
    """Keep errors by bucket."""
    train(lambda bucket: {bucket.index(): bucket.buffer()})


@repairs(compression_state_before_bucket_rebuild)
def repaired(rank: int) -> None:
    """Keep errors by parameter."""
    train(lambda bucket: dict(zip(bucket.parameters(), bucket.gradients(), strict=True)))
