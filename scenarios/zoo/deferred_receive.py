"""A schedule defers a receive, so two neighbouring stages both send while the other is not there to receive.

Each stage's own order looks right, and a validator of single stages accepts it. Where a send waits for its receive,
as on real gloo here, both time out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["pytorch/pytorch#172668"],
    tags=["pipeline", "point-to-point"],
    world_size=2,
    max_world_size=2,
)
def deferred_receive(rank: int) -> None:
    """Two activations go forward and one gradient comes back."""
    first, second, gradient = (torch.full((4,), index) for index in range(3))
    if rank == 0:
        dist.send(first, 1)
        dist.send(second, 1)  # found here
        dist.recv(gradient, 1)
    else:
        dist.recv(first, 0)
        dist.send(gradient, 0)  # found here
        dist.recv(second, 0)


@repairs(deferred_receive)
def repaired(rank: int) -> None:
    """What is to come is received before what depends on it is sent."""
    first, second, gradient = (torch.full((4,), index) for index in range(3))
    if rank == 0:
        dist.send(first, 1)
        dist.send(second, 1)
        dist.recv(gradient, 1)
    else:
        dist.recv(first, 0)
        dist.recv(second, 0)
        dist.send(gradient, 0)
