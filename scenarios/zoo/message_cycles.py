"""Point-to-point messages in a ring, in which every rank waits for another."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=every_rank), reports=["pytorch/pytorch#11275"], tags=["point-to-point"]
)
def both_receive_first(rank: int) -> float:
    """Every rank of a ring receives before it sends, so no rank ever sends.

    The mirror image of sending first, and sure to hang on any backend, however small the message: nothing is on its
    way.
    """
    # Take the running total of the rank before, add to it, and hand it on.
    world_size = dist.get_world_size()
    total = torch.zeros(1)
    dist.recv(total, src=(rank - 1) % world_size)  # found here
    total += rank
    dist.send(total, dst=(rank + 1) % world_size)
    return total.item()


@repairs(both_receive_first)
def both_receive_first_repaired(rank: int) -> float:
    """Rank 0 begins: it sends first, and receives the total of all at the end."""
    world_size = dist.get_world_size()
    total = torch.zeros(1)
    if rank > 0:
        dist.recv(total, src=rank - 1)
    total += rank
    dist.send(total, dst=(rank + 1) % world_size)
    if rank == 0:
        dist.recv(total, src=world_size - 1)
    return total.item()


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["NVIDIA/nccl#479", "pytorch/pytorch#11275"],
    tags=["point-to-point"],
)
def both_send_first(rank: int) -> float:
    """Two ranks swap a number, and both send before they receive: each waits for the other to receive.

    `send` may return at once on some backends while messages are small, so the bug waits for a larger one. The
    blocking send of real gloo waits for its receive even for two elements: it blocks at once.
    """
    mine, theirs = torch.tensor([float(rank)]), torch.zeros(1)
    if rank < 2:
        dist.send(mine, dst=1 - rank)  # found here
        dist.recv(theirs, src=1 - rank)
    return theirs.item()


@repairs(both_send_first)
def both_send_first_repaired(rank: int) -> float:
    """Both messages are handed over together, and the backend may move them in any order."""
    mine, theirs = torch.tensor([float(rank)]), torch.zeros(1)
    if rank < 2:
        swap = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
        for work in dist.batch_isend_irecv(swap):
            work.wait()
    return theirs.item()


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=every_rank),
    reports=["NVIDIA/nccl#479", "pytorch/pytorch#11275"],
    tags=["point-to-point", "cycle"],
)
def send_send(rank: int) -> float:
    """A ring in which every rank sends first: a blocking send waits for its receive, which no rank reaches.

    Real gloo waits for the receive however small the message is.
    """
    world_size = dist.get_world_size()
    mine, received = torch.tensor([float(rank)]), torch.zeros(1)
    dist.send(mine, dst=(rank + 1) % world_size)  # found here
    dist.recv(received, src=(rank - 1) % world_size)
    return received.item()


@repairs(send_send)
def send_send_repaired(rank: int) -> float:
    """Odd ranks receive first, so each send of an even rank is received, and then the others are."""
    world_size = dist.get_world_size()
    mine, received = torch.tensor([float(rank)]), torch.zeros(1)
    if rank % 2 == 1:
        dist.recv(received, src=(rank - 1) % world_size)
    dist.send(mine, dst=(rank + 1) % world_size)
    if rank % 2 == 0:
        dist.recv(received, src=(rank - 1) % world_size)
    return received.item()


def pass_on(rank: int, sending: dist.ProcessGroup | None, receiving: dist.ProcessGroup | None) -> None:
    """Send to the next rank while receiving from the one before."""
    world_size = dist.get_world_size()
    sent = dist.isend(torch.ones(2), (rank + 1) % world_size, group=sending)
    dist.recv(torch.empty(2), (rank - 1) % world_size, group=receiving)  # found here
    assert sent is not None
    sent.wait()


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 2)),
    reports=["ByteDance-Seed/VeOmni#1085"],
    tags=["point-to-point", "groups"],
    world_size=3,
    min_world_size=3,
    max_world_size=3,
)
def parity_in_an_odd_ring(rank: int) -> None:
    """Ranks of a ring choose their group by parity, and in a ring of three the last and the first are both even.

    Even ranks send on one group and receive on the other, odd ranks the other way round; where two even ranks meet,
    one sends in a group in which the other does not receive. Real gloo: two ranks hang.
    """
    groups = [dist.new_group(), dist.new_group()]
    pass_on(rank, groups[rank % 2], groups[1 - rank % 2])


@repairs(parity_in_an_odd_ring)
def parity_in_an_odd_ring_repaired(rank: int) -> None:
    """One group for both: the sender distinguishes the two directions."""
    ring = dist.new_group()
    pass_on(rank, ring, ring)
