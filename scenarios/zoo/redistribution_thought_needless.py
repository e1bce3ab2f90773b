"""A rank does not redistribute a DTensor, as its placements seem right already, and enters a barrier.

The others have shards, and gather them. Whether to redistribute is decided by a rank's own copy of the placements.
Real gloo: all time out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def hidden(is_replicated: bool) -> torch.Tensor:
    """Activations, in shards or whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    placement = Replicate() if is_replicated else Shard(0)
    return DTensor.from_local(torch.ones(2, 4), mesh, [placement], run_check=False)


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=1),
    reports=["pytorch/pytorch#172924"],
    tags=["dtensor", "control-flow"],
    min_world_size=3,
)
def redistribution_thought_needless(rank: int) -> None:
    """Replicate activations and meet; on rank 1 they are taken for replicated."""
    activations = hidden(is_replicated=rank == 1)
    activations.full_tensor()  # type: ignore[attr-defined]
    dist.barrier()  # found here


@repairs(redistribution_thought_needless)
def repaired(rank: int) -> None:
    """All ranks have shards."""
    activations = hidden(is_replicated=False)
    activations.full_tensor()  # type: ignore[attr-defined]
    dist.barrier()
