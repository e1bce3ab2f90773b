"""A message is shorter than the tensor it is received into, as the last micro-batch of a pipeline may be.

On real gloo a short message leaves the rest of the tensor as it was, without a word; a message that is too long aborts
the process of the receiver.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario

BATCH = 5


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=(0, 1)),
    reports=["pytorch/pytorch#113376", "ByteDance-Seed/VeOmni#1085"],
    tags=["point-to-point"],
)
def p2p_size_or_order_differs(rank: int) -> list[float]:
    """Hand 8 activations from rank 0 to rank 1, 5 at a time."""
    received = torch.zeros(BATCH)
    for batch in torch.arange(8.0).split(BATCH):
        if rank == 0:
            dist.send(batch, dst=1)  # found here
        elif rank == 1:
            dist.recv(received, src=0)
    return [float(value) for value in received]


@repairs(p2p_size_or_order_differs)
def repaired(rank: int) -> list[float]:
    """A message with the size goes first."""
    received = torch.zeros(0)
    for batch in torch.arange(8.0).split(BATCH):
        size = torch.tensor([len(batch)])
        if rank == 0:
            dist.send(size, dst=1)
            dist.send(batch, dst=1)
        elif rank == 1:
            dist.recv(size, src=0)
            received = torch.zeros(int(size))
            dist.recv(received, src=0)
    return [float(value) for value in received]
