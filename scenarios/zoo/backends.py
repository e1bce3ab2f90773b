"""Programs that pass on gloo and hang by the rules of another backend."""

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
    """A batch of messages has the receive first on both sides: one unit on NCCL, a deadlock where batches run in order.

    torch's documentation makes a batch one unit. A backend that replays its messages one after another waits on
    both sides for the second operation of the other side.
    """
    # Exchange a border with the other rank.
    receive, send, received = _operations(rank)
    for work in dist.batch_isend_irecv([receive, send]):  # found here
        work.wait()
    return float(received[0])


@repairs(batch_replayed_in_order)
def batch_replayed_in_order_repaired(rank: int) -> float:
    """One of the two sends first."""
    receive, send, received = _operations(rank)
    for work in dist.batch_isend_irecv([send, receive] if rank == 0 else [receive, send]):
        work.wait()
    return float(received[0])


def _operations(rank: int) -> tuple[dist.P2POp, dist.P2POp, torch.Tensor]:
    received = torch.zeros(4)
    send = dist.P2POp(dist.isend, torch.full((4,), float(rank)), 1 - rank)
    return dist.P2POp(dist.irecv, received, 1 - rank), send, received


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=0),
    reports=["pytorch/gloo#520"],
    tags=["raw", "backend"],
    backend_semantics="lazy-connect",
)
def first_call_left_behind(rank: int) -> None:
    """A rank issues the first call of a group, does not wait, and ends: peers that connect at first use find it gone.

    gloo connects all ranks when the group is made, unless it is told to be lazy (TORCH_GLOO_LAZY_INIT). Then what
    the rank left behind never leaves its process.
    """
    # Rank 0 gives its share, publishes a result and goes; the others come when it is published.
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.all_reduce(torch.ones(1), async_op=True)  # found here
        store.set("published", "1")
        return
    store.wait(["published"])
    dist.all_reduce(torch.ones(1))


@repairs(first_call_left_behind)
def first_call_left_behind_repaired(rank: int) -> None:
    """Rank 0 publishes first, and waits for its call before it ends."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("published", "1")
    else:
        store.wait(["published"])
    dist.all_reduce(torch.ones(1))


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["pytorch/pytorch#172668", "pytorch/pytorch#132644"],
    tags=["raw", "p2p", "backend"],
    world_size=2,
    max_world_size=2,
    backend_semantics="nccl",
)
def send_issued_before_receive(rank: int) -> float:
    """Two neighbours each issue a send and then a receive, and wait for both: it passes on gloo and can hang on NCCL.

    NCCL runs what a rank gives it for one peer in order, so each send waits for a receive that stands behind the
    other one. gloo starts both at once.
    """
    # Exchange a border with the other rank.
    received = torch.zeros(4)
    sending = dist.isend(torch.full((4,), float(rank)), 1 - rank)  # found here
    receiving = dist.irecv(received, 1 - rank)
    assert sending is not None
    assert receiving is not None
    sending.wait()
    receiving.wait()
    return float(received[0])


@repairs(send_issued_before_receive)
def send_issued_before_receive_repaired(rank: int) -> float:
    """Both go in one batch, which NCCL starts as a whole."""
    received = torch.zeros(4)
    send = dist.P2POp(dist.isend, torch.full((4,), float(rank)), 1 - rank)
    for work in dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, received, 1 - rank)]):
        work.wait()
    return float(received[0])
