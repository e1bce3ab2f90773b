"""Rank 0 logs the norm of sharded gradients, which looks like a number and is a DTensor.

`clip_grad_norm_` returns a norm whose parts lie on the ranks. Real gloo: rank 0 reduces, the others are in their
barrier, and both time out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def norm_of_weights() -> torch.Tensor:
    """The norm of weights that lie in shards, as it comes out of torch: not added up yet."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    weights = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
    norm: torch.Tensor = torch.linalg.vector_norm(weights)
    return norm


@scenario(expected=finds(Code.MISMATCH_OPERATION, ranks=0), tags=["dtensor", "control-flow"], min_world_size=3)
def norm_of_shards_read_on_one_rank(rank: int) -> None:
    """Work out a norm, and let rank 0 log it."""
    norm = norm_of_weights()
    if rank == 0:
        norm.full_tensor()  # type: ignore[attr-defined]  # found here
    dist.barrier()


@repairs(norm_of_shards_read_on_one_rank)
def repaired(rank: int) -> float | None:
    """All ranks add it up, one logs it."""
    norm = norm_of_weights().full_tensor()  # type: ignore[attr-defined]
    dist.barrier()
    return norm.item() if rank == 0 else None
