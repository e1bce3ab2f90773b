"""Two neighbours each issue a send and then a receive, and wait for both: it passes on gloo and can hang on NCCL.

NCCL runs what a rank gives it for one peer in order, so each send waits for a receive that stands behind the other
one. gloo starts both at once.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["pytorch/pytorch#172668", "pytorch/pytorch#132644"],
    tags=["raw", "p2p", "backend"],
    world_size=2,
    max_world_size=2,
    backend_semantics="nccl",
)
def send_issued_before_receive(rank: int) -> float:
    """Exchange a border with the other rank."""
    received = torch.zeros(4)
    sending = dist.isend(torch.full((4,), float(rank)), 1 - rank)  # found here
    receiving = dist.irecv(received, 1 - rank)
    assert sending is not None
    assert receiving is not None
    sending.wait()
    receiving.wait()
    return float(received[0])


@repairs(send_issued_before_receive)
def repaired(rank: int) -> float:
    """Both go in one batch, which NCCL starts as a whole."""
    received = torch.zeros(4)
    send = dist.P2POp(dist.isend, torch.full((4,), float(rank)), 1 - rank)
    for work in dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, received, 1 - rank)]):
        work.wait()
    return float(received[0])
