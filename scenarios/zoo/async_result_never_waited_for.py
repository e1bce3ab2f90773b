"""An all_reduce is launched and its handle thrown away: the rank ends, or logs, before the data has moved.

Nothing ties the rank to the call any more. Real gloo moves data on threads of its own: a few numbers arrive in time, so
that it is not noticed, until there is more to move.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(expected=finds(Code.HAZARD_UNWAITED_WORK, ranks=every_rank), tags=["raw", "teardown"])
def async_result_never_waited_for(rank: int) -> None:
    """Add up a loss in the background, twice."""
    for step in range(2):
        loss = torch.tensor([float(rank + step)])
        dist.all_reduce(loss, async_op=True)  # found here


@repairs(async_result_never_waited_for)
def repaired(rank: int) -> None:
    """The handles are kept, and waited for at the end."""
    losses = [torch.tensor([float(rank + step)]) for step in range(2)]
    works = [dist.all_reduce(loss, async_op=True) for loss in losses]
    for work in works:
        work.wait()
