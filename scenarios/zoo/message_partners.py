"""Point-to-point messages without a partner, and messages that nobody waits for."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


def exchange_all(operations: list[dist.P2POp]) -> None:
    """Make the messages of a batch, and wait for them."""
    for work in dist.batch_isend_irecv(operations):  # found here
        work.wait()


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["NVIDIA/nccl#2130", "pytorch/PiPPy#969", "pytorch/pytorch#74701", "pytorch/pytorch#109401"],
    tags=["point-to-point"],
    world_size=2,
    max_world_size=2,
)
def batch_of_messages_without_partner(rank: int) -> None:
    """A batch on one rank has a receive for which no rank sends.

    One side was written as an exchange, the other as a receive. Real gloo: the rank that only receives is done, and
    the other fails as its peer leaves.
    """
    received = torch.empty(2)
    operations = [dist.P2POp(dist.irecv, received, 1 - rank)]
    if rank == 0:
        operations.append(dist.P2POp(dist.isend, torch.ones(2), 1))
    exchange_all(operations)


@repairs(batch_of_messages_without_partner)
def batch_of_messages_without_partner_repaired(rank: int) -> None:
    """Both send and receive."""
    received = torch.empty(2)
    exchange_all([dist.P2POp(dist.irecv, received, 1 - rank), dist.P2POp(dist.isend, torch.ones(2), 1 - rank)])


@scenario(expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)), tags=["point-to-point"])
def message_tags_differ(rank: int) -> float:
    """Sender and receiver number their messages differently: each waits for a partner with its own tag.

    A message is taken only by a receive with the same tag. On real gloo one rank times out, and the other then sees
    a closed connection.
    """
    # Hand a number from rank 0 to rank 1; rank 0 counts steps from 1, and rank 1 from 0.
    number = torch.tensor([float(rank)])
    if rank == 0:
        dist.send(number, dst=1, tag=1)  # found here
    elif rank == 1:
        dist.recv(number, src=0, tag=0)
    return number.item()


@repairs(message_tags_differ)
def message_tags_differ_repaired(rank: int) -> float:
    """Both count from 0."""
    number = torch.tensor([float(rank)])
    if rank == 0:
        dist.send(number, dst=1, tag=0)
    elif rank == 1:
        dist.recv(number, src=0, tag=0)
    return number.item()


@scenario(
    expected=finds(Code.HAZARD_UNWAITED_WORK, ranks=1),
    reports=["pytorch/pytorch#78514", "pytorch/pytorch#75512"],
    tags=["point-to-point", "teardown"],
)
def isend_dropped_then_exit(rank: int) -> float:
    """The handle of an `isend` is thrown away and the rank ends: nothing says that the message has left by then.

    The transfer needs its sender alive. On real gloo the sender ends well, and the receiver, if it comes later,
    finds the connection closed; in a simulation the message arrives, so it can only be a hazard.
    """
    # Rank 1 reports its loss to rank 0, as the last thing it does.
    loss = torch.tensor([float(rank)])
    if rank == 1:
        dist.isend(loss, dst=0)  # found here
    elif rank == 0:
        dist.recv(loss, src=1)
    return loss.item()


@repairs(isend_dropped_then_exit)
def isend_dropped_then_exit_repaired(rank: int) -> float:
    """A blocking send has been received when it returns; with isend, the rank keeps the handle and waits."""
    loss = torch.tensor([float(rank)])
    if rank == 1:
        dist.send(loss, dst=0)
    elif rank == 0:
        dist.recv(loss, src=1)
    return loss.item()


def begin_exchange(rank: int) -> list[dist.Work]:
    """Messages to the next rank and from the one before."""
    size = dist.get_world_size()
    received = torch.empty(2)
    return dist.batch_isend_irecv(  # found here
        [dist.P2POp(dist.irecv, received, (rank - 1) % size), dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % size)]
    )


@scenario(
    expected=finds(Code.HAZARD_UNWAITED_WORK, ranks=every_rank),
    reports=["pytorch/pytorch#132644", "pytorch/pytorch#152938"],
    tags=["point-to-point", "pipeline"],
)
def one_work_of_a_batch(rank: int) -> None:
    """A batch of messages returns a work for each, and the program waits for the last one only.

    On a backend that runs the batch as one, a single work stands for all. On gloo each has its own: what is
    received may be read before it is there. Real gloo: no error, here and often the right values.
    """
    begin_exchange(rank).pop().wait()


@repairs(one_work_of_a_batch)
def one_work_of_a_batch_repaired(rank: int) -> None:
    """Wait for each."""
    for work in begin_exchange(rank):
        work.wait()
