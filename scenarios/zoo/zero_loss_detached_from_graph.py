"""A rank without targets returns a fresh zero as its loss: no gradient arrives there, and its bucket never starts.

Backward runs and has nothing to do, so DDP is not informed; the search for unused parameters goes through the model's
output, and finds none. On gloo that rank is done, unchanged, and the others see the connection close.
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def targets(rank: int, step: int) -> Tensor:
    """Four targets; in step 1 there are none on rank 1."""
    return torch.zeros(0 if rank == 1 and step == 1 else 4, dtype=torch.long)


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["pytorch/pytorch#23425", "pytorch/pytorch#40566", "Lightning-AI/pytorch-lightning#12190"],
    tags=["ddp", "control-flow"],
)
def zero_loss_detached_from_graph(rank: int) -> None:
    """Take two steps; without targets the loss is a zero made on the spot."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 3), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        scores, wanted = model(torch.randn(8, 10)), targets(rank, step)  # found here by ddp
        optimizer.zero_grad()
        if len(wanted) > 0:
            loss = torch.nn.functional.cross_entropy(scores[: len(wanted)], wanted)
        else:
            loss = torch.zeros((), requires_grad=True)
        loss.backward()  # found here by torch
        optimizer.step()


@repairs(zero_loss_detached_from_graph)
def repaired(rank: int) -> None:
    """The zero is made of the model's output, so the backward goes through every parameter."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 3), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        scores, wanted = model(torch.randn(8, 10)), targets(rank, step)
        optimizer.zero_grad()
        if len(wanted) > 0:
            loss = torch.nn.functional.cross_entropy(scores[: len(wanted)], wanted)
        else:
            loss = 0.0 * scores.sum()
        loss.backward()
        optimizer.step()
