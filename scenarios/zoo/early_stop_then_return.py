"""A rank stops early by its own validation loss and returns, while the others train on and wait for it.

The rule is sound, but every rank applies it to numbers of its own. On gloo the others see a closed connection.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["Lightning-AI/pytorch-lightning#379", "ultralytics/yolov5#8345", "isi-nlp/rtg#11"],
    tags=["ddp", "control-flow"],
)
def early_stop_then_return(rank: int) -> None:
    """Train up to 6 steps; rank 1 has had no better loss for too long after step 3."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    for step in range(6):
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        patience_is_over = rank == 1 and step == 3
        if patience_is_over:
            return


@repairs(early_stop_then_return)
def repaired(rank: int) -> None:
    """As soon as the patience of one rank is over, all return."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    for step in range(6):
        model(torch.randn(8, 10)).square().mean().backward()
        patience_is_over = torch.tensor(int(rank == 1 and step == 3))
        dist.all_reduce(patience_is_over, dist.ReduceOp.MAX)
        if patience_is_over:
            return
