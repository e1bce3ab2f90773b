"""Models that are compiled by torch.compile."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def compiled(length: int, cache: dict[int, list[object]]) -> list[object]:
    """The graph for batches of a length, which ranks agree on when they compile it."""
    if length not in cache:
        plans: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(plans, f"plan for {length}")  # found here
        cache[length] = plans
    return cache[length]


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=1),
    reports=["pytorch/pytorch#155558", "pytorch/pytorch#193043"],
    tags=["compile", "control-flow"],
    min_world_size=3,
)
def one_rank_recompiles(rank: int) -> None:
    """Compiling a graph takes all ranks, and only the rank that has seen no such shape before compiles.

    A cache of compiled graphs is a rank's own, and what it lacks depends on the rank's batches. Real gloo: its
    gather meets the others' reduction, and all time out.
    """
    # Two batches; the second of rank 1 is longer.
    cache: dict[int, list[object]] = {}
    for length in (8, 9 if rank == 1 else 8):
        compiled(length, cache)
        dist.all_reduce(torch.ones(length).sum())


@repairs(one_rank_recompiles)
def one_rank_recompiles_repaired(rank: int) -> None:
    """Ranks agree on the length first, and pad their batches."""
    cache: dict[int, list[object]] = {}
    for own in (8, 9 if rank == 1 else 8):
        longest = torch.tensor(own)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        compiled(int(longest), cache)
        dist.all_reduce(torch.ones(int(longest)).sum())
