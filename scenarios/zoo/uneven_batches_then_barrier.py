"""One rank has a batch less and enters the barrier at the end of the epoch, where the others' gradients meet it.

Calls pair by their order, so the reduction of the others' last batch meets the barrier. On gloo the rank in the
barrier waits for its time-out, and its peers then see the connection close.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    reports=[
        "Lightning-AI/pytorch-lightning#20404",
        "horovod/horovod#3980",
        "huggingface/datasets#6623",
        "microsoft/PyMarlin#80",
    ],
    tags=["ddp", "loop"],
)
def uneven_batches_then_barrier(rank: int) -> None:
    """Train an epoch of 4 batches, 3 on rank 1; then wait for everybody."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3 if rank == 1 else 4):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()
    dist.barrier()  # found here


@repairs(uneven_batches_then_barrier)
def repaired(rank: int) -> None:
    """Before each batch the ranks ask whether everybody has one; the first that has none ends the epoch of all."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = iter([torch.randn(8, 10) for _ in range(3 if rank == 1 else 4)])
    while True:
        batch = next(mine, None)
        everybody_has_one = torch.tensor(int(batch is not None))
        dist.all_reduce(everybody_has_one, op=dist.ReduceOp.MIN)
        if not everybody_has_one:
            break
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    dist.barrier()
