"""A rank issues the first call of a group, does not wait, and ends: peers that connect at first use find it gone.

gloo connects all ranks when the group is made, unless it is told to be lazy (TORCH_GLOO_LAZY_INIT). Then what the rank
left behind never leaves its process.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=0),
    reports=["pytorch/gloo#520"],
    tags=["raw", "backend"],
    backend_semantics="lazy-connect",
)
def first_call_left_behind(rank: int) -> None:
    """Rank 0 gives its share, publishes a result and goes; the others come when it is published."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.all_reduce(torch.ones(1), async_op=True)  # found here
        store.set("published", "1")
        return
    store.wait(["published"])
    dist.all_reduce(torch.ones(1))


@repairs(first_call_left_behind)
def repaired(rank: int) -> None:
    """Rank 0 publishes first, and waits for its call before it ends."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("published", "1")
    else:
        store.wait(["published"])
    dist.all_reduce(torch.ones(1))
