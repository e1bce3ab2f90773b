"""Each rank looks at its own clock to see whether it is time to save: at some step a slow rank does, and no other.

Before a collective the ranks are not equally far, so a limit may lie between the times they read. On gloo the barrier
of the save meets the gradients of those that do not save yet.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario

SAVE_EVERY_SECONDS = 5.0


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    reports=["speechbrain/speechbrain#1166"],
    tags=["ddp", "control-flow"],
)
def local_clock_decides(rank: int) -> None:
    """Read a batch, which takes rank 1 longer, save if it is time, and train, 4 times."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    saved = time.monotonic()
    for _ in range(4):
        time.sleep(2.0 if rank == 1 else 1.0)
        if time.monotonic() - saved > SAVE_EVERY_SECONDS:
            dist.barrier()  # found here
            saved = time.monotonic()
        model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(local_clock_decides)
def repaired(rank: int) -> None:
    """Rank 0 reads its clock, and informs the others."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    saved = time.monotonic()
    for _ in range(4):
        time.sleep(2.0 if rank == 1 else 1.0)
        is_time = torch.tensor(int(time.monotonic() - saved > SAVE_EVERY_SECONDS))
        dist.broadcast(is_time, src=0)
        if is_time:
            dist.barrier()
            saved = time.monotonic()
        model(torch.randn(8, 10)).square().mean().backward()
