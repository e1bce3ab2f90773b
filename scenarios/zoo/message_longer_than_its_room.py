"""A message is longer than the tensor that it is received into, as the sender does not truncate its sequences.

Nothing of a message says how long it is. On real gloo the receiver's process aborts, without a Python exception.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario

LONGEST = 5


def hand_over(rank: int, tokens: torch.Tensor) -> int:
    """Send the tokens from rank 0 to rank 1, which makes room for the longest sequence and looks where it ends."""
    received = torch.full((LONGEST,), -1)
    if rank == 0:
        dist.send(tokens, dst=1)  # found here
    elif rank == 1:
        dist.recv(received, src=0)
    return int((received >= 0).sum())


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=(0, 1)), reports=["pytorch/pytorch#113376"], tags=["point-to-point"]
)
def message_longer_than_its_room(rank: int) -> int:
    """Send what there is."""
    return hand_over(rank, torch.arange(8))


@repairs(message_longer_than_its_room)
def repaired(rank: int) -> int:
    """The sender truncates to what the receiver has room for."""
    return hand_over(rank, torch.arange(8)[:LONGEST])
