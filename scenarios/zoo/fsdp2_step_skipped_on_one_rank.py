"""One rank skips an optimizer step, and its shards stay behind: parameters are put together from two steps.

The loss of its own batch decides, which is infinite there only. Nothing is out of step for the backend: real gloo
trains on, with parameters that no single step has had.
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


@scenario(expected=finds(Code.MISMATCH_ORIGIN, ranks=1), tags=["fsdp2", "optimizer", "control-flow"], min_world_size=3)
def fsdp2_step_skipped_on_one_rank(rank: int) -> None:
    """Train for three steps, but for the updates that a rank's own loss does not allow."""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()  # found here
        loss.backward()
        if (rank, step) != (1, 1):
            optimizer.step()


@repairs(fsdp2_step_skipped_on_one_rank)
def repaired(rank: int) -> None:
    """One rank that cannot step keeps all from it."""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        may_step = torch.tensor(int((rank, step) != (1, 1)))
        dist.all_reduce(may_step, op=dist.ReduceOp.MIN)
        if may_step:
            optimizer.step()
