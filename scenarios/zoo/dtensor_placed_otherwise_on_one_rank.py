"""A DTensor has other placements on one rank, and is put together wrongly in silence.

Gathering shards of rows and of columns is one operation to a backend, of one size. Real gloo: no error; the ranks get
different tensors.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def whole(dimension: int) -> torch.Tensor:
    """A square, from parts that are taken for shards of a dimension."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    part = DTensor.from_local(torch.full((4, 4), dist.get_rank()), mesh, [Shard(dimension)], run_check=False)
    return part.full_tensor()  # found here


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=1),
    reports=["pytorch/pytorch#172924"],
    tags=["dtensor"],
    min_world_size=3,
)
def dtensor_placed_otherwise_on_one_rank(rank: int) -> None:
    """Put a tensor together; rank 1 has loaded another layout."""
    whole(1 if rank == 1 else 0)


@repairs(dtensor_placed_otherwise_on_one_rank)
def repaired(rank: int) -> None:
    """One layout for all."""
    whole(0)
