"""Every rank evaluates the inner module, with the running statistics of its own last batches.

Rank 0's buffers are taken over before each forward and updated locally in it, so after the last step they differ. Real
gloo shows no error; in a measurement two ranks' predictions were 4 % apart.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


def trained(rank: int) -> DistributedDataParallel:
    """A model with batch norm after three steps on the rank's own kind of data."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4) + rank).square().mean().backward()
        optimizer.step()
    return model


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
    reports=[
        "pytorch/pytorch#13711",
        "huggingface/pytorch-image-models#110",
        "open-mmlab/mmdetection#4582",
        "open-mmlab/mmpose#998",
        "pytorch/pytorch#30718",
    ],
    tags=["ddp", "buffers"],
)
def running_statistics_drift(rank: int) -> torch.Tensor:
    """Evaluate the inner module on the same batch everywhere."""
    model = trained(rank).eval()
    with torch.no_grad():
        prediction: torch.Tensor = model.module(torch.ones(2, 4))  # found here
    return prediction


@repairs(running_statistics_drift)
def repaired(rank: int) -> torch.Tensor:
    """Evaluate through the wrapper, on all ranks: that broadcasts the buffers once more."""
    model = trained(rank).eval()
    with torch.no_grad():
        prediction: torch.Tensor = model(torch.ones(2, 4))
    return prediction
