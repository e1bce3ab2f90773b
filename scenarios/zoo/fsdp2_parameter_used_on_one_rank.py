"""A unit of FSDP2 has two layers, and one rank's batch uses only the first: its gradients are fewer.

A unit reduces the gradients that there are as one tensor, so the ranks bring tensors of different lengths. Real gloo:
the process with the shorter one aborts, the others read a closed connection.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.scenarios.model import Code, finds, repairs, scenario


class Routed(torch.nn.Module):
    """A second layer for batches that need it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, batch: Tensor, is_long: bool) -> Tensor:
        """The batch, through one layer or both."""
        first: Tensor = self.first(batch)
        second: Tensor = self.second(first)
        return second if is_long else first


def sharded() -> torch.nn.Module:
    """The network as one unit."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Routed()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=1),
    reports=["pytorch/pytorch#158719", "pytorch/pytorch#170667", "pytorch/pytorch#174862"],
    tags=["fsdp2", "unused"],
    min_world_size=3,
)
def fsdp2_parameter_used_on_one_rank(rank: int) -> None:
    """One forward and backward; the batch of rank 1 is short."""
    model = sharded()
    model(torch.ones(2, 4), rank != 1).sum().backward()  # found here


@repairs(fsdp2_parameter_used_on_one_rank)
def repaired(rank: int) -> None:
    """The loss depends on both layers everywhere, on the second by zero where the batch is short."""
    model = sharded()
    long, short = (model(torch.ones(2, 4), is_long).sum() for is_long in (True, False))
    (long + 0 * short if rank != 1 else short + 0 * long).backward()
