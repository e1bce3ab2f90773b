"""One rank freezes a layer before it wraps the model, and the others do not.

A frozen parameter is in no bucket, so the wrapper counts fewer parameters there. Real gloo: every rank raises, with
the counts and nothing else; our engine names the parameters that rank 1 has frozen.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=odd_one_out(1)), reports=["pytorch/pytorch#73547"], tags=["wrapping", "ddp"]
)
def trainable_set_differs_at_wrap(rank: int) -> None:
    """Freeze the body on rank 1, as its copy of a checkpoint says."""
    module = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 1))
    module[0].requires_grad_(rank != 1)
    model = DistributedDataParallel(module)  # found here
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(trainable_set_differs_at_wrap)
def repaired(rank: int) -> None:
    """Every rank freezes the body."""
    module = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 1))
    module[0].requires_grad_(False)
    model = DistributedDataParallel(module)
    model(torch.randn(8, 10)).square().mean().backward()
