"""A thread that reports metrics and the thread that trains share one group, and which one launches first is a race.

Rank 0 starts its report and trains on at once; the others wait until theirs is through. Real gloo pairs what
comes first with what comes first; equal sizes exchange their values in silence.
"""

import queue
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


def train() -> None:
    """Average gradients."""
    dist.all_reduce(torch.ones(3))  # found here


def report() -> None:
    """Add up a metric."""
    dist.all_reduce(torch.ones(1))


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(0), shows=7, otherwise=CLEAN), tags=["raw", "control-flow"]
)
def two_threads_one_group(rank: int) -> None:
    """Report on a thread of its own, and train."""
    reporter = threading.Thread(target=report, name="reporter")
    reporter.start()
    if rank > 0:
        reporter.join()
    train()
    reporter.join()


@repairs(two_threads_one_group)
def repaired(rank: int) -> None:
    """One thread makes all calls, in the order in which they were put into its queue."""
    calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def work() -> None:
        while call := calls.get():
            call()

    caller = threading.Thread(target=work, name="caller")
    caller.start()
    for call in (report, train, None):
        calls.put(call)
    caller.join()
