"""DTensors: placements, partial values, and reading what is sharded."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


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
    """A DTensor has other placements on one rank, and is put together wrongly in silence.

    Gathering shards of rows and of columns is one operation to a backend, of one size. Real gloo: no error; the
    ranks get different tensors.
    """
    # Put a tensor together; rank 1 has loaded another layout.
    whole(1 if rank == 1 else 0)


@repairs(dtensor_placed_otherwise_on_one_rank)
def dtensor_placed_otherwise_on_one_rank_repaired(rank: int) -> None:
    """One layout for all."""
    whole(0)


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
    """Rank 0 logs the norm of sharded gradients, which looks like a number and is a DTensor.

    `clip_grad_norm_` returns a norm whose parts lie on the ranks. Real gloo: rank 0 reduces, the others are in
    their barrier, and both time out.
    """
    norm = norm_of_weights()
    if rank == 0:
        norm.full_tensor()  # type: ignore[attr-defined]  # found here
    dist.barrier()


@repairs(norm_of_shards_read_on_one_rank)
def norm_of_shards_read_on_one_rank_repaired(rank: int) -> float | None:
    """All ranks add it up, one logs it."""
    norm = norm_of_weights().full_tensor()  # type: ignore[attr-defined]
    dist.barrier()
    return norm.item() if rank == 0 else None


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
    """A weight is whole on all ranks of tensor parallelism, and the gradients of their branches are not added up.

    Each gradient is placed as the weight is, as `Replicate`, where `Partial` is right. Real gloo: no error; the
    replicas of the weight drift apart.
    """
    train(rank, is_partial=False)


@repairs(partial_gradient_taken_for_replicated)
def partial_gradient_taken_for_replicated_repaired(rank: int) -> None:
    """Each rank has a part of the gradient."""
    train(rank, is_partial=True)


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
    """A rank does not redistribute a DTensor, as its placements seem right already, and enters a barrier.

    The others have shards, and gather them. Whether to redistribute is decided by a rank's own copy of the
    placements. Real gloo: all time out.
    """
    # Replicate activations and meet; on rank 1 they are taken for replicated.
    activations = hidden(is_replicated=rank == 1)
    activations.full_tensor()  # type: ignore[attr-defined]
    dist.barrier()  # found here


@repairs(redistribution_thought_needless)
def redistribution_thought_needless_repaired(rank: int) -> None:
    """All ranks have shards."""
    activations = hidden(is_replicated=False)
    activations.full_tensor()  # type: ignore[attr-defined]
    dist.barrier()
