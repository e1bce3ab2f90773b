"""A plateau rule lowers the learning rate by the rank's own validation loss, so not on all ranks at once.

Gradients are equal, and the steps that they lead to are not. Real gloo shows no error.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def validation_loss(rank: int, epoch: int) -> torch.Tensor:
    """Falls from epoch to epoch, but not on rank 1's share of the data."""
    return torch.tensor(1.0 if rank == 1 else 1.0 / (epoch + 1))


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(1)),
    reports=["rmchurch/disruptcnn#3"],
    tags=["ddp", "optimizer"],
)
def schedule_follows_local_metric(rank: int) -> None:
    """Each rank feeds its own loss to its scheduler."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    for epoch in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()  # found here
        scheduler.step(validation_loss(rank, epoch).item())


@repairs(schedule_follows_local_metric)
def repaired(rank: int) -> None:
    """The losses are summed first."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    for epoch in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        loss = validation_loss(rank, epoch)
        dist.all_reduce(loss)
        scheduler.step(loss.item())
