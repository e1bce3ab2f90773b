"""The loss comes from a forward of the inner module, and each rank trains a model of its own.

Only a forward through the wrapper arms the reducer. Real gloo: no error; the parameters differ from the first step on.
Our engine notices the backward that was not announced, and raises.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["jingyaogong/minimind#853", "jingyaogong/minimind#854", "bytetriper/RAE#40", "kohya-ss/sd-scripts#924"],
    tags=["reducer", "ddp"],
)
def inner_module_used_for_the_loss(rank: int) -> None:
    """Three steps with the loss of `model.module`."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model.module(torch.randn(8, 10)).square().mean().backward()  # found here by ddp
        optimizer.step()  # found here by torch


@repairs(inner_module_used_for_the_loss)
def repaired(rank: int) -> None:
    """The loss comes from the wrapper."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
