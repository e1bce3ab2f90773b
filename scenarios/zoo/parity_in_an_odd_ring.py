"""Ranks of a ring choose their group by parity, and in a ring of three the last and the first are both even.

Even ranks send on one group and receive on the other, odd ranks the other way round; where two even ranks meet, one
sends in a group in which the other does not receive. Real gloo: two ranks hang.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def pass_on(rank: int, sending: dist.ProcessGroup | None, receiving: dist.ProcessGroup | None) -> None:
    """Send to the next rank while receiving from the one before."""
    world_size = dist.get_world_size()
    sent = dist.isend(torch.ones(2), (rank + 1) % world_size, group=sending)
    dist.recv(torch.empty(2), (rank - 1) % world_size, group=receiving)  # found here
    assert sent is not None
    sent.wait()


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 2)),
    reports=["ByteDance-Seed/VeOmni#1085"],
    tags=["point-to-point", "groups"],
    world_size=3,
    min_world_size=3,
    max_world_size=3,
)
def parity_in_an_odd_ring(rank: int) -> None:
    """Pass a block on, by two groups of all ranks."""
    groups = [dist.new_group(), dist.new_group()]
    pass_on(rank, groups[rank % 2], groups[1 - rank % 2])


@repairs(parity_in_an_odd_ring)
def repaired(rank: int) -> None:
    """One group for both: the sender distinguishes the two directions."""
    ring = dist.new_group()
    pass_on(rank, ring, ring)
