"""A helper returns the wrapped model in some calls and the inner one in others, so some steps reduce nothing.

The inner module has the same parameters, and the loop is the same. Real gloo: no error; each rank trains a model of
its own from there on.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    tags=["wrapping", "ddp"],
)
def wrapped_only_sometimes(rank: int) -> None:
    """Two steps, the second with what the helper returns once the model is warm."""
    torch.manual_seed(rank)
    wrapped = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for model in (wrapped, wrapped.module):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here by ddp
        optimizer.step()  # found here by torch


@repairs(wrapped_only_sometimes)
def repaired(rank: int) -> None:
    """The wrapper is used in every step that trains."""
    torch.manual_seed(rank)
    wrapped = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
