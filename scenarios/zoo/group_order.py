"""Several groups of the same ranks, used in another order on some of them."""

import queue
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["meta-pytorch/torchrec#4149", "NVIDIA/Megatron-LM#6616", "NVIDIA/nccl#195", "NVIDIA/nccl#574"],
    tags=["groups"],
)
def cross_group_order_inversion(rank: int) -> None:
    """A pair of ranks and the whole world reduce in two orders: each of the two waits where the other one comes later.

    Blocking calls on groups that share two ranks or more need one order. Real gloo hangs until the time-out; the
    ranks outside the pair hang with them, though they have done nothing wrong.
    """
    # Ranks 0 and 1 share a layer, all ranks a loss; rank 1 reduces the loss first.
    pair = dist.new_group([0, 1])
    loss, layer = torch.ones(1), torch.ones(4)
    if rank == 0:
        dist.all_reduce(layer, group=pair)  # found here
    dist.all_reduce(loss)
    if rank == 1:
        dist.all_reduce(layer, group=pair)


@repairs(cross_group_order_inversion)
def cross_group_order_inversion_repaired(rank: int) -> None:
    """Both reduce over the pair first."""
    pair = dist.new_group([0, 1])
    loss, layer = torch.ones(1), torch.ones(4)
    if rank in (0, 1):
        dist.all_reduce(layer, group=pair)
    dist.all_reduce(loss)


@scenario(
    expected=finds(Code.HAZARD_GROUP_ORDER, ranks=odd_one_out(1)),
    reports=["NVIDIA/Megatron-LM#6616", "NVIDIA/nccl#574"],
    tags=["groups"],
)
def cross_group_order_inversion_async(rank: int) -> None:
    """Two groups are used in two orders by asynchronous calls: that passes on CPUs, and can hang where a device runs them.

    Launching does not block here, so all calls meet and real gloo gives right results. On a GPU each rank's calls
    may run one after another in the order of launch, and then each one waits for the other.
    """
    # Reduce in two groups of the same ranks at once; rank 1 launches in the other order.
    everybody = list(range(dist.get_world_size()))
    groups = [dist.new_group(everybody), dist.new_group(everybody)]
    order = reversed(groups) if rank == 1 else groups
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in order]  # found here
    for work in works:
        work.wait()


@repairs(cross_group_order_inversion_async)
def cross_group_order_inversion_async_repaired(rank: int) -> None:
    """Every rank launches in the order in which the groups were made."""
    everybody = list(range(dist.get_world_size()))
    groups = [dist.new_group(everybody), dist.new_group(everybody)]
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in groups]
    for work in works:
        work.wait()


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["meta-pytorch/torchrec#4149", "NVIDIA/Megatron-LM#6616"],
    tags=["groups", "cycle"],
)
def group_order_inversion(rank: int) -> None:
    """Two groups in opposite order: each rank waits in a call of one group for a rank that waits in a call of the other.

    Blocking calls on groups that share ranks need one order everywhere. Real gloo hangs until its time-out.
    """
    everybody = list(range(dist.get_world_size()))
    first, second = dist.new_group(everybody), dist.new_group(everybody)
    for group in (first, second) if rank % 2 == 0 else (second, first):
        dist.all_reduce(torch.ones(2), group=group)  # found here


@repairs(group_order_inversion)
def group_order_inversion_repaired(rank: int) -> None:
    """All ranks use the first group first."""
    everybody = list(range(dist.get_world_size()))
    first, second = dist.new_group(everybody), dist.new_group(everybody)
    for group in (first, second):
        dist.all_reduce(torch.ones(2), group=group)


def make_pairs() -> list[dist.ProcessGroup]:
    """A group for each rank and the one after it."""
    world_size = dist.get_world_size()
    return [dist.new_group([rank, (rank + 1) % world_size]) for rank in range(world_size)]


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=every_rank),
    reports=["mpi-forum/mpi-issues#532"],
    tags=["groups"],
    min_world_size=3,
)
def groups_in_a_ring(rank: int) -> None:
    """Each rank shares a group with either neighbour, and all begin with the one to the right: no rank's turn ever comes.

    No two groups are used in two orders by the same ranks, and still the waits close a circle, as with philosophers
    who all take the right fork first. Real gloo hangs until its time-out.
    """
    # Share a border with the rank to the right, then with the one to the left.
    pairs = make_pairs()
    right, left = pairs[rank], pairs[rank - 1]
    for pair in (right, left):
        dist.all_reduce(torch.ones(2), group=pair)  # found here


@repairs(groups_in_a_ring)
def groups_in_a_ring_repaired(rank: int) -> None:
    """Groups are used in the order in which they were made, so rank 0 begins to the right, and the last to the left."""
    pairs = make_pairs()
    for index in sorted({rank, (rank - 1) % len(pairs)}):
        dist.all_reduce(torch.ones(2), group=pairs[index])


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
    """A thread that reports metrics and the thread that trains share one group, and which one launches first is a race.

    Rank 0 starts its report and trains on at once; the others wait until theirs is through. Real gloo pairs what
    comes first with what comes first; equal sizes exchange their values in silence.
    """
    reporter = threading.Thread(target=report, name="reporter")
    reporter.start()
    if rank > 0:
        reporter.join()
    train()
    reporter.join()


@repairs(two_threads_one_group)
def two_threads_one_group_repaired(rank: int) -> None:
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
