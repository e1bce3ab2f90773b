"""One rank wraps a model of the same layers, one of which has another shape there.

Each rank but the first compares its shapes with rank 0's and raises alone; rank 0 learns nothing. Real gloo: rank 1
names the parameter's index, rank 0 sees a closed connection. Under our engine every rank raises, with the name.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    under_ddp=finds(Code.RANK_ERROR, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#73547", "pytorch/pytorch#74113"],
    tags=["wrapping", "ddp"],
)
def parameter_shape_differs_at_wrap(rank: int) -> None:
    """Each rank sizes its last layer by the labels of its own shard, and rank 1 has seen one class more."""
    labels_here = [0, 1, 2, 3] if rank == 1 else [0, 1, 2]
    model = DistributedDataParallel(torch.nn.Linear(10, len(labels_here)))  # found here
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(parameter_shape_differs_at_wrap)
def repaired(rank: int) -> None:
    """The ranks agree on the number of classes first."""
    labels_here = [0, 1, 2, 3] if rank == 1 else [0, 1, 2]
    classes = torch.tensor(len(labels_here))
    torch.distributed.all_reduce(classes, op=torch.distributed.ReduceOp.MAX)
    model = DistributedDataParallel(torch.nn.Linear(10, int(classes)))
    model(torch.randn(8, 10)).square().mean().backward()
