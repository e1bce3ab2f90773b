"""A batch of messages has the receive first on both sides: one unit on NCCL, a deadlock where batches run in order.

torch's documentation makes a batch one unit. A backend that replays its messages one after another waits on both
sides for the second operation of the other side.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["meta-pytorch/torchcomms#2885"],
    tags=["raw", "p2p", "backend"],
    world_size=2,
    max_world_size=2,
    backend_semantics="in-order",
)
def batch_replayed_in_order(rank: int) -> float:
    """Exchange a border with the other rank."""
    receive, send, received = _operations(rank)
    for work in dist.batch_isend_irecv([receive, send]):  # found here
        work.wait()
    return float(received[0])


@repairs(batch_replayed_in_order)
def repaired(rank: int) -> float:
    """One of the two sends first."""
    receive, send, received = _operations(rank)
    for work in dist.batch_isend_irecv([send, receive] if rank == 0 else [receive, send]):
        work.wait()
    return float(received[0])


def _operations(rank: int) -> tuple[dist.P2POp, dist.P2POp, torch.Tensor]:
    received = torch.zeros(4)
    send = dist.P2POp(dist.isend, torch.full((4,), float(rank)), 1 - rank)
    return dist.P2POp(dist.irecv, received, 1 - rank), send, received
