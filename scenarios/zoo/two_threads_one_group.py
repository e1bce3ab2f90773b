"""Two tasks of a rank share one group, and which of them launches first is a race that each rank decides for itself.

A stand-in for two threads, the training loop and a metrics thread: each rank runs its tasks in the order in which they
become ready. Real gloo pairs what comes first with what comes first; equal sizes exchange their values in silence.
"""

import torch
import torch.distributed as dist

from scenarios.model import CLEAN, finds, repairs, scenario
from simulator import Code


def train() -> None:
    """The task that averages gradients."""
    dist.all_reduce(torch.ones(3))  # found here


def report() -> None:
    """The task that adds up a metric."""
    dist.all_reduce(torch.ones(1))


@scenario(
    about=__doc__,
    expected=finds(
        Code.MISMATCH_SHAPE, ranks=lambda world_size: (1,) if world_size > 2 else (0, 1), shows=2, otherwise=CLEAN
    ),
    reports=[],
    tags=["raw", "control-flow"],
)
def two_threads_one_group(rank: int) -> None:
    """Report as soon as there is something to report, of which rank 1 hears from rank 0; else train first."""
    news = torch.zeros(1)
    message = None
    if rank == 0:
        dist.send(news, dst=1)
    elif rank == 1:
        message = dist.irecv(news, src=0)
    is_ready = message is None or message.is_completed()
    for task in (report, train) if is_ready else (train, report):
        task()
    if message is not None:
        message.wait()


@repairs(two_threads_one_group)
def repaired(rank: int) -> None:
    """The tasks stand in a queue, in the same order on every rank."""
    news = torch.zeros(1)
    if rank == 0:
        dist.send(news, dst=1)
    elif rank == 1:
        dist.recv(news, src=0)
    for task in (report, train):
        task()
