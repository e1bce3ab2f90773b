"""Under static_graph with find_unused_parameters, a rank that has joined reduces a map that the others do not.

A static graph reduces the map of used parameters in its first iteration only; torch's join makes up for one whenever
find_unused_parameters is set: on real gloo a process aborts. Engine "ddp" follows what the others do.
"""

import warnings

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


class PartlyUsed(torch.nn.Module):
    """Two layers, one of which nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(4, 1)
        self.unused = torch.nn.Linear(4, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The prediction."""
        return self.used(batch)  # type: ignore[no-any-return]


@scenario(expected=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)), under_ddp=CLEAN, tags=["ddp", "join", "reducer"])
def join_static_graph_and_unused_parameters(rank: int) -> None:
    """Train on 4 batches, and on 2 on rank 1, with both options."""
    torch.manual_seed(rank)
    warnings.simplefilter("ignore", UserWarning)  # torch says that one option would do, and not that both do harm
    model = DistributedDataParallel(PartlyUsed(), static_graph=True, find_unused_parameters=True)
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()  # found here


@repairs(join_static_graph_and_unused_parameters)
def repaired(rank: int) -> None:
    """static_graph alone: it finds out for itself what is unused."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(PartlyUsed(), static_graph=True)
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()
