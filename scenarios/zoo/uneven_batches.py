"""Ranks with different numbers of batches."""

from collections.abc import Iterator
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


def average_steps(rank: int, steps: int) -> None:
    """Train, and reduce a metric of one number."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    for _ in range(steps):
        model(torch.ones(1, 1)).sum().backward()
    dist.all_reduce(torch.full((1,), 100.0))  # found here


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=1),
    reports=["pytorch/pytorch#141069"],
    tags=["ddp", "loop"],
    min_world_size=3,
)
def surplus_bucket_meets_a_metric(rank: int) -> None:
    """A rank has one batch more, and its gradient bucket meets the others' metric, which has as many numbers.

    Backends pair by order and size. Real gloo: adds a gradient to the metric, and the rank fails or waits long
    after, in another call.
    """
    average_steps(rank, 3 if rank == 1 else 4)


@repairs(surplus_bucket_meets_a_metric)
def surplus_bucket_meets_a_metric_repaired(rank: int) -> None:
    """As many steps for all."""
    average_steps(rank, 3)


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
    """One rank's share of the data has a batch less: it is done and exits while the others reduce one more batch.

    The stream is split by what each rank filters and mixes for itself, so no rank knows the lengths. On gloo the
    others see a closed connection, or wait for the time-out if the process of the rank lives on.
    """
    torch.manual_seed(rank)
    train(batches(rank))


@repairs(uneven_batches_rank_exits)
def uneven_batches_rank_exits_repaired(rank: int) -> None:
    """The ranks count their batches first, and all of them stop after the smallest count."""
    torch.manual_seed(rank)
    count = torch.tensor(sum(1 for _ in batches(rank)))
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    train(islice(batches(rank), int(count)))


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
    """One rank has a batch less and enters the barrier at the end of the epoch, where the others' gradients meet it.

    Calls pair by their order, so the reduction of the others' last batch meets the barrier. On gloo the rank in the
    barrier waits for its time-out, and its peers then see the connection close.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3 if rank == 1 else 4):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()
    dist.barrier()  # found here


@repairs(uneven_batches_then_barrier)
def uneven_batches_then_barrier_repaired(rank: int) -> None:
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


@scenario(expected=CLEAN, tags=["ddp", "join"])
def uneven_inputs(rank: int) -> list[float]:
    """Uneven inputs under `join`: a rank that has run out of batches makes the collectives that the others wait for."""
    # Train on 3, 4 or 5 batches, depending on the rank; all ranks end with the same parameters.
    torch.manual_seed(rank)  # every rank draws its own data; DDP starts them all from rank 0's parameters
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(3 + rank % 3):
            optimizer.zero_grad()
            model(torch.randn(8, 10)).square().mean().backward()
            optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["pytorch/pytorch#38174"],
    tags=["ddp", "join"],
)
def uneven_inputs_without_join(rank: int) -> None:
    """One rank has a batch less than the others, and nothing shadows its collectives.

    The others reduce the gradients of a batch that the rank does not have, with a rank that has returned. Real gloo
    closes the connection, or waits for its time-out while the process lives.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4 if rank == 1 else 5):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()


@repairs(uneven_inputs_without_join)
def uneven_inputs_without_join_repaired(rank: int) -> None:
    """The same under `model.join()`: rank 1 makes the calls that the others wait for."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(4 if rank == 1 else 5):
            optimizer.zero_grad()
            model(torch.randn(8, 10)).square().mean().backward()
            optimizer.step()
