"""Rank 0 evaluates a model sharded by FSDP2, whose forward takes every rank, and the others are in a barrier.

With DDP's inner module the same loop is right, as each rank has the whole model. Real gloo: both sides time out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def sharded() -> torch.nn.Module:
    """Each layer a unit of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@scenario(expected=finds(Code.MISMATCH_OPERATION, ranks=0), tags=["fsdp2", "control-flow"], min_world_size=3)
def fsdp2_evaluation_on_one_rank(rank: int) -> None:
    """Train for a step, evaluate on rank 0, and continue together."""
    model = sharded()
    model(torch.ones(2, 4)).sum().backward()
    if rank == 0:
        with torch.no_grad():
            model(torch.ones(2, 4))  # found here
    dist.barrier()


@repairs(fsdp2_evaluation_on_one_rank)
def repaired(rank: int) -> None:
    """All ranks evaluate."""
    model = sharded()
    model(torch.ones(2, 4)).sum().backward()
    with torch.no_grad():
        model(torch.ones(2, 4))
    dist.barrier()
