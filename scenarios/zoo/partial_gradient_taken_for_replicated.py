"""A weight is whole on all ranks of tensor parallelism, and the gradients of their branches are not added up.

Each gradient is placed as the weight is, as `Replicate`, where `Partial` is right. Real gloo: no error; the replicas of
the weight drift apart.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


def train(rank: int, *, is_partial: bool) -> None:
    """One step on a weight that feeds a branch on each rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    weight = torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Replicate()]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    of_branch = torch.full((4,), 1.0 + rank)
    placement = Partial() if is_partial else Replicate()
    weight.grad = DTensor.from_local(of_branch, mesh, [placement], run_check=False).redistribute(mesh, [Replicate()])
    optimizer.step()  # found here


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["NVIDIA/Megatron-LM#7452"],
    tags=["dtensor", "optimizer"],
)
def partial_gradient_taken_for_replicated(rank: int) -> None:
    """Take the branch's gradient for that of the weight."""
    train(rank, is_partial=False)


@repairs(partial_gradient_taken_for_replicated)
def repaired(rank: int) -> None:
    """Each rank has a part of the gradient."""
    train(rank, is_partial=True)
