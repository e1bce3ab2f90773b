"""A layer is unfrozen after the model was wrapped, and each rank trains it on its own gradients.

The wrapper has hooks only for the parameters that required a gradient at its construction. Real gloo: no error; the
layer's parameters differ between ranks. Our engine refuses the next forward, with the names.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["Lightning-AI/pytorch-lightning#20340", "NVIDIA/apex#46"],
    tags=["wrapping", "ddp"],
)
def unfreeze_after_wrap(rank: int) -> None:
    """Train the head first, then the body, too."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    body.requires_grad_(False)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        if epoch == 1:
            body.requires_grad_(True)
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here by ddp
        optimizer.step()  # found here by torch


@repairs(unfreeze_after_wrap)
def repaired(rank: int) -> None:
    """The model is wrapped again after unfreezing."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    body.requires_grad_(False)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        if epoch == 1:
            body.requires_grad_(True)
            model = DistributedDataParallel(model.module)
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
