"""One rank's share of the data has a batch less: it is done and exits while the others reduce one more batch.

The stream is split by what each rank filters and mixes for itself, so no rank knows the lengths. On gloo the others see
a closed connection, or wait for the time-out if the process of the rank lives on.
"""

from collections.abc import Iterator
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def batches(rank: int) -> Iterator[Tensor]:
    """The rank's share of a stream: 4 batches, of which rank 1 filters out one."""
    for number in range(4):
        samples = torch.randn(8, 10)
        if not (rank == 1 and number == 2):
            yield samples


def train(mine: Iterator[Tensor]) -> None:
    """Train on these batches."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in mine:
        optimizer.zero_grad()
        model(batch).square().mean().backward()  # found here
        optimizer.step()


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=[
        "pytorch/pytorch#38174",
        "pytorch/pytorch#141069",
        "Lightning-AI/litData#340",
        "mosaicml/streaming#876",
        "https://discuss.pytorch.org/t/training-hangs-on-loss-backward-with-ddp-nnodes-2-nproc-per-node-3/220127",
    ],
    tags=["ddp", "loop"],
)
def uneven_batches_rank_exits(rank: int) -> None:
    """Train on the rank's own share, to its end."""
    torch.manual_seed(rank)
    train(batches(rank))


@repairs(uneven_batches_rank_exits)
def repaired(rank: int) -> None:
    """The ranks count their batches first, and all of them stop after the smallest count."""
    torch.manual_seed(rank)
    count = torch.tensor(sum(1 for _ in batches(rank)))
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    train(islice(batches(rank), int(count)))
