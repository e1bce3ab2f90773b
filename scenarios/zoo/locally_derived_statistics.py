"""Every rank averages the model over time, buffers included, and so evaluates with statistics of its own.

Parameters are equal on all ranks, so an average of them is, too; running statistics are not, between a forward and the
next, and neither is what is derived from them. Real gloo shows no error.
"""

import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


def trained(rank: int) -> tuple[DistributedDataParallel, torch.nn.Module]:
    """A model with batch norm after three steps, and its moving average."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    )
    average = copy.deepcopy(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4) + rank).square().mean().backward()
        optimizer.step()
        for mean, newest in zip(average.state_dict().values(), model.module.state_dict().values(), strict=True):
            mean.copy_(0.5 * mean + 0.5 * newest)
    return model, average


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
    reports=[
        "NCAR/miles-credit#394",
        "Megvii-BaseDetection/YOLOX#1176",
        "facebookresearch/detectron2#5398",
        "lucidrains/ema-pytorch#9",
    ],
    tags=["ddp", "buffers"],
)
def locally_derived_statistics(rank: int) -> None:
    """Load the average into the model, and evaluate that."""
    model, average = trained(rank)
    model.module.load_state_dict(average.state_dict())
    model.module.eval()(torch.ones(2, 4))  # found here


@repairs(locally_derived_statistics)
def repaired(rank: int) -> None:
    """Rank 0's average of the buffers is broadcast before it is used."""
    model, average = trained(rank)
    for buffer in average.buffers():
        dist.broadcast(buffer, src=0)
    model.module.load_state_dict(average.state_dict())
    model.module.eval()(torch.ones(2, 4))
