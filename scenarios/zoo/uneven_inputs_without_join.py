"""One rank has a batch less than the others, and nothing shadows its collectives.

The others reduce the gradients of a batch that the rank does not have, with a rank that has returned. Real gloo closes
the connection, or waits for its time-out while the process lives.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["pytorch/pytorch#38174"],
    tags=["ddp", "join"],
)
def uneven_inputs_without_join(rank: int) -> None:
    """Train on 5 batches, and on 4 on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4 if rank == 1 else 5):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()


@repairs(uneven_inputs_without_join)
def repaired(rank: int) -> None:
    """The same under `model.join()`: rank 1 makes the calls that the others wait for."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(4 if rank == 1 else 5):
            optimizer.zero_grad()
            model(torch.randn(8, 10)).square().mean().backward()
            optimizer.step()
