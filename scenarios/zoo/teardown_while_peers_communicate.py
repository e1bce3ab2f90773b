"""A rank that believes the work is done destroys its groups while the others are still in a collective.

Leaving is not agreed on. On real gloo the survivors see a connection that was reset or closed, and which of them do
depends on the timing.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["pytorch/torchtitan#1342", "pytorch/pytorch#122358", "areal-project/AReaL#1245"],
    tags=["teardown"],
)
def teardown_while_peers_communicate(rank: int) -> None:
    """Average a metric three times; rank 1 cleans up after the second."""
    for _ in range(2 if rank == 1 else 3):
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()  # found here


@repairs(teardown_while_peers_communicate)
def repaired(rank: int) -> None:
    """The ranks agree on how often, and leave together."""
    times = torch.tensor(2 if rank == 1 else 3)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    for _ in range(int(times)):
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
