"""Each rank shares a group with either neighbour, and all begin with the one to the right: no rank's turn ever comes.

No two groups are used in two orders by the same ranks, and still the waits close a circle, as with philosophers who
all take the right fork first. Real gloo hangs until its time-out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


def make_pairs() -> list[dist.ProcessGroup]:
    """A group for each rank and the one after it."""
    world_size = dist.get_world_size()
    return [dist.new_group([rank, (rank + 1) % world_size]) for rank in range(world_size)]


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=every_rank),
    reports=["mpi-forum/mpi-issues#532"],
    tags=["groups"],
    min_world_size=3,
)
def groups_in_a_ring(rank: int) -> None:
    """Share a border with the rank to the right, then with the one to the left."""
    pairs = make_pairs()
    right, left = pairs[rank], pairs[rank - 1]
    for pair in (right, left):
        dist.all_reduce(torch.ones(2), group=pair)  # found here


@repairs(groups_in_a_ring)
def repaired(rank: int) -> None:
    """Groups are used in the order in which they were made, so rank 0 begins to the right, and the last to the left."""
    pairs = make_pairs()
    for index in sorted({rank, (rank - 1) % len(pairs)}):
        dist.all_reduce(torch.ones(2), group=pairs[index])
