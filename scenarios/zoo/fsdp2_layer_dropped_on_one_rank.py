"""One rank drops a layer at random, and each layer is a unit of FSDP2: its gathers are one unit off.

Gathers pair by their order. So the parameters of the next layer are put together from shards of two layers, and real
gloo, which compares sizes at most, says nothing before the last gather.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.scenarios.model import Code, finds, repairs, scenario


class Blocks(torch.nn.Module):
    """Layers of one size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, batch: Tensor, left_out: int | None = None) -> Tensor:
        """The batch, through all layers but one."""
        for index, layer in enumerate(self.layers):
            batch = batch if index == left_out else layer(batch)  # found here
        return batch


def sharded() -> torch.nn.Module:
    """Each layer a unit of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Blocks()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=1),
    reports=["pytorch/pytorch#75902"],
    tags=["fsdp2", "control-flow"],
    min_world_size=3,
)
def fsdp2_layer_dropped_on_one_rank(rank: int) -> None:
    """One forward and backward; rank 1 leaves the second layer out."""
    model = sharded()
    model(torch.ones(2, 4), 1 if rank == 1 else None).sum().backward()


@repairs(fsdp2_layer_dropped_on_one_rank)
def repaired(rank: int) -> None:
    """All ranks draw the layer from one seed."""
    model = sharded()
    generator = torch.Generator().manual_seed(7)
    model(torch.ones(2, 4), int(torch.randint(3, (1,), generator=generator))).sum().backward()
