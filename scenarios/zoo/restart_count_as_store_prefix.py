"""Ranks prefix the keys of a store with how often they were restarted, and one was restarted once more than the others.

The count is a rank's own. So rank 1 waits under a prefix under which no rank writes. Real gloo: it waits for the
store's time-out, 30 minutes by default.
"""

import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def agree_on_id(rank: int, prefix: str) -> bytes:
    """The id that rank 0 has drawn."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set(f"{prefix}/id", "run 7")
    found: bytes = store.get(f"{prefix}/id")  # found here
    return found


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["pytorch/pytorch#135712", "pytorch/pytorch#108158"],
    tags=["store", "elastic"],
)
def restart_count_as_store_prefix(rank: int) -> bytes:
    """Read the id of the run; rank 1 has died once."""
    restarts = 1 if rank == 1 else 0
    return agree_on_id(rank, f"attempt {restarts}")


@repairs(restart_count_as_store_prefix)
def repaired(rank: int) -> bytes:
    """The prefix is the number of the round that all ranks entered together, which the launcher gives them."""
    return agree_on_id(rank, "round 1")
