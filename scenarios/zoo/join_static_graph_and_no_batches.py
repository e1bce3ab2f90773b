"""A rank has no batch at all, so it never saw the first iteration, in which a static graph is recorded.

The others reduce a map of the parameters they used once, at the end of that iteration; torch's join does not make up
for it, and on real gloo a process aborts. Engine "ddp" lets a rank have no batch here, too.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)), under_ddp=CLEAN, tags=["ddp", "join", "reducer"])
def join_static_graph_and_no_batches(rank: int) -> None:
    """Train on 3 batches, and on none on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1), static_graph=True)
    with model.join():  # found here
        for _ in range(0 if rank == 1 else 3):
            model(torch.randn(8, 4)).square().mean().backward()  # found here


@repairs(join_static_graph_and_no_batches)
def repaired(rank: int) -> None:
    """Rank 1 has one batch."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1), static_graph=True)
    with model.join():
        for _ in range(1 if rank == 1 else 3):
            model(torch.randn(8, 4)).square().mean().backward()
