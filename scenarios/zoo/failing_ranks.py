"""Ranks that raise, die or destroy their groups while the others need them."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Crash
from ddpsim.scenarios.model import Code, finds, repairs, scenario


def decode(rank: int, step: int) -> Tensor:
    """Read a batch; the one of rank 1 in step 2 cannot be read."""
    if rank == 1 and step == 2:
        raise ValueError("sample 17 is truncated")  # found here
    return torch.randn(8, 10)


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=[
        "Lightning-AI/pytorch-lightning#6430",
        "Red-Hat-AI-Innovation-Team/mini_trainer#60",
        "sgl-project/SpecForge#781",
    ],
    tags=["ddp", "control-flow"],
)
def exception_on_one_rank(rank: int) -> None:
    """One rank meets a broken sample and raises; the others wait for its gradients.

    They do not learn that it has left. On gloo they see a closed connection, or a time-out whose message hides the
    cause.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        batch = decode(rank, step)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


@repairs(exception_on_one_rank)
def exception_on_one_rank_repaired(rank: int) -> None:
    """The rank catches its error, informs the others, and all of them stop with what they have."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        has_failed = torch.zeros(())
        try:
            batch = decode(rank, step)
        except ValueError:
            has_failed = torch.ones(())
        dist.all_reduce(has_failed, op=dist.ReduceOp.MAX)
        if has_failed:
            return
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=["Lightning-AI/pytorch-lightning#6430"],
    tags=["ddp", "control-flow"],
    faults=[Crash(rank=1, before_call=3)],
)
def rank_crash(rank: int) -> None:
    """A rank dies in the middle of training: its own exception leads the report, the ranks that wait for it come second.

    The crash is injected, as by a machine that is lost. On gloo the others see a closed connection, and not why.
    """
    # Train on 3 batches. Nothing is wrong here: the crash is a fault of the scenario.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()


@repairs(rank_crash)
def rank_crash_repaired(rank: int) -> None:
    """The same program where nothing crashes."""
    rank_crash.program(rank)


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["pytorch/torchtitan#1342", "pytorch/pytorch#122358", "areal-project/AReaL#1245"],
    tags=["teardown"],
)
def teardown_while_peers_communicate(rank: int) -> None:
    """A rank that believes the work is done destroys its groups while the others are still in a collective.

    Leaving is not agreed on. On real gloo the survivors see a connection that was reset or closed, and which of
    them do depends on the timing.
    """
    # Average a metric three times; rank 1 cleans up after the second.
    for _ in range(2 if rank == 1 else 3):
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()  # found here


@repairs(teardown_while_peers_communicate)
def teardown_while_peers_communicate_repaired(rank: int) -> None:
    """The ranks agree on how often, and leave together."""
    times = torch.tensor(2 if rank == 1 else 3)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    for _ in range(int(times)):
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
