"""A layer is frozen after the model was wrapped, and the reducer waits for its gradients forever.

Which parameters to expect was settled at construction. Real gloo: every rank raises at its second forward; the first
step was made with gradients that were not averaged. Our engine refuses the first forward, with the names.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#22049", "NVIDIA/apex#46"],
    tags=["wrapping", "ddp"],
)
def freeze_after_wrap(rank: int) -> None:
    """Freeze the body of a wrapped model."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    body.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()


@repairs(freeze_after_wrap)
def repaired(rank: int) -> None:
    """The model is wrapped again after freezing."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    body.requires_grad_(False)
    model = DistributedDataParallel(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
