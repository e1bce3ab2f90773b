"""A rank that has nothing to gather returns at once, and the others wait for it in the gather.

The guard saves work on one machine; with ranks, an empty list has to be gathered, too. Real gloo: the others get an
error as its process ends, or time out.
"""

import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def gathered(samples: list[int], *, returns_early: bool) -> list[int]:
    """The samples of all ranks."""
    if returns_early and not samples:
        return []
    every: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, samples)  # found here
    return [sample for part in every for sample in part]


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["huggingface/trl#5841"],
    tags=["control-flow", "raw"],
    min_world_size=3,
)
def early_return_when_nothing_is_local(rank: int) -> list[int]:
    """Gather samples; rank 1 has none."""
    return gathered([] if rank == 1 else [rank], returns_early=True)


@repairs(early_return_when_nothing_is_local)
def repaired(rank: int) -> list[int]:
    """Ranks without samples gather as well."""
    return gathered([] if rank == 1 else [rank], returns_early=False)
