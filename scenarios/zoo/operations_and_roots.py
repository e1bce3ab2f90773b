"""Calls that meet and differ in what they do: another collective, another reduction, another root."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#72843", "pytorch/pytorch#79901", "deepspeedai/DeepSpeed#8262"],
    tags=["raw", "control-flow"],
)
def op_type_differs(rank: int) -> float:
    """Two ways to share one number meet: the ranks reduce a scale, and one expects to receive it from rank 0.

    One rank takes another branch, and its broadcast is the next call on the group where the others make an
    all_reduce. On real gloo all of them wait until the time-out.
    """
    # Agree on a scale, the largest one; on rank 1 nothing has overflowed, so it only asks for the result.
    scale = torch.tensor([2.0**rank])
    has_overflowed = rank != 1
    if has_overflowed:
        dist.all_reduce(scale, op=dist.ReduceOp.MAX)  # found here
    else:
        dist.broadcast(scale, src=0)  # found here
    return scale.item()


@repairs(op_type_differs)
def op_type_differs_repaired(rank: int) -> float:
    """Every rank brings its scale into the one reduction, whatever has happened to it."""
    scale = torch.tensor([2.0**rank])
    dist.all_reduce(scale, op=dist.ReduceOp.MAX)
    return scale.item()


@scenario(expected=finds(Code.MISMATCH_REDUCTION, ranks=odd_one_out(1)), tags=["raw", "ddp"])
def reduce_op_differs(rank: int) -> float:
    """Two rules for one metric meet: one rank asks for the smallest loss of all ranks, the others for the largest.

    Each rank reads from its own settings whether less is better. No backend compares this, torch's debug mode
    neither: real gloo reduces a single number by one of the two rules, on every rank, and training stops too early
    or too late.
    """
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    loss = model(torch.full((8, 10), float(rank))).square().mean()
    loss.backward()
    decisive = loss.detach().clone()
    rule = dist.ReduceOp.MIN if rank == 1 else dist.ReduceOp.MAX
    dist.all_reduce(decisive, op=rule)  # found here
    return float(decisive)


@repairs(reduce_op_differs)
def reduce_op_differs_repaired(rank: int) -> float:
    """One rule on every rank."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    loss = model(torch.full((8, 10), float(rank))).square().mean()
    loss.backward()
    decisive = loss.detach().clone()
    dist.all_reduce(decisive, op=dist.ReduceOp.MAX)
    return float(decisive)


@scenario(expected=finds(Code.MISMATCH_ROOT, ranks=every_rank), reports=["pytorch/pytorch#76527"], tags=["raw"])
def reduce_to_different_ranks(rank: int) -> float:
    """Each rank reduces towards itself: `dst` names the one rank that gets the sum, not the place of the caller's result.

    On real gloo some ranks return numbers, and the others fail or wait. Even when used rightly, the tensor of a
    rank that is not the destination may be left half written.
    """
    loss = torch.tensor([float(rank)])
    dist.reduce(loss, dst=rank)  # found here
    return loss.item()


@repairs(reduce_to_different_ranks)
def reduce_to_different_ranks_repaired(rank: int) -> float:
    """Where every rank wants the sum, it takes all_reduce."""
    loss = torch.tensor([float(rank)])
    dist.all_reduce(loss)
    return loss.item()


@scenario(expected=finds(Code.MISMATCH_ROOT, ranks=odd_one_out(1)), reports=["pytorch/pytorch#76527"], tags=["raw"])
def root_differs(rank: int) -> list[float]:
    """Two ranks believe that they are the source: one finds a leftover checkpoint on its disk and sends its own weights.

    Each rank picks the source of the broadcast by looking at its own files. On real gloo both of two such ranks
    wait until the time-out.
    """
    # Start from the checkpoint of rank 0; rank 1 has an old one, too.
    has_checkpoint = rank in (0, 1)
    weights = torch.full((2,), float(rank))
    dist.broadcast(weights, src=rank if has_checkpoint else 0)  # found here
    return [float(weight) for weight in weights]


@repairs(root_differs)
def root_differs_repaired(rank: int) -> list[float]:
    """The ranks agree on the source first: the lowest rank that has a checkpoint."""
    has_checkpoint = rank in (0, 1)
    weights = torch.full((2,), float(rank))
    source = torch.tensor(rank if has_checkpoint else dist.get_world_size())
    dist.all_reduce(source, op=dist.ReduceOp.MIN)
    dist.broadcast(weights, src=int(source))
    return [float(weight) for weight in weights]
