"""Point-to-point messages that arrive, and are not what the receiver takes them for."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import CLEAN, Code, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot

LONGEST = 5
BATCH = 5


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
    """A message is longer than the tensor that it is received into, as the sender does not truncate its sequences.

    Nothing of a message says how long it is. On real gloo the receiver's process aborts, without a Python
    exception.
    """
    return hand_over(rank, torch.arange(8))


@repairs(message_longer_than_its_room)
def message_longer_than_its_room_repaired(rank: int) -> int:
    """The sender truncates to what the receiver has room for."""
    return hand_over(rank, torch.arange(8)[:LONGEST])


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=(0, 1)),
    reports=["pytorch/pytorch#113376", "ByteDance-Seed/VeOmni#1085"],
    tags=["point-to-point"],
)
def p2p_size_or_order_differs(rank: int) -> list[float]:
    """A message is shorter than the tensor it is received into, as the last micro-batch of a pipeline may be.

    On real gloo a short message leaves the rest of the tensor as it was, without a word; a message that is too long
    aborts the process of the receiver.
    """
    # Hand 8 activations from rank 0 to rank 1, 5 at a time.
    received = torch.zeros(BATCH)
    for batch in torch.arange(8.0).split(BATCH):
        if rank == 0:
            dist.send(batch, dst=1)  # found here
        elif rank == 1:
            dist.recv(received, src=0)
    return [float(value) for value in received]


@repairs(p2p_size_or_order_differs)
def p2p_size_or_order_differs_repaired(rank: int) -> list[float]:
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


def trained() -> torch.nn.Module:
    """Two layers of the same shape."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))


def trained_alone(world_size: int) -> Snapshot:
    """What every rank should hold."""
    return snapshot(trained())


def copy_layers(rank: int, first_tag: int, second_tag: int) -> Snapshot:
    """Copy two layers from rank 0 to rank 1, which asks for the second one first."""
    model = trained()
    first, second = (weight.detach() for weight in model.parameters())
    how, other = (dist.isend, 1) if rank == 0 else (dist.irecv, 0)
    copy = [dist.P2POp(how, first, other, tag=first_tag), dist.P2POp(how, second, other, tag=second_tag)]
    in_order = copy if rank == 0 else copy[::-1]
    for work in dist.batch_isend_irecv(in_order) if rank < 2 else []:  # found here
        work.wait()
    return snapshot(model)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=1),
    reports=["ByteDance-Seed/VeOmni#1085", "pytorch/pytorch#94819"],
    tags=["point-to-point", "oracle"],
    reference=trained_alone,
)
def messages_with_one_tag_reordered(rank: int) -> Snapshot:
    """Two messages of one size and tag are received in the other order: each tensor gets the values of the other.

    Messages between two ranks meet in the order in which they are sent, unless tags distinguish them. Real gloo
    exchanges the values without a word, so only a comparison with what they should be shows it.
    """
    return copy_layers(rank, 0, 0)


@repairs(messages_with_one_tag_reordered)
def messages_with_one_tag_reordered_repaired(rank: int) -> Snapshot:
    """Each layer has a tag of its own; under NCCL, which knows no tags, receive in the order of the sends."""
    return copy_layers(rank, 1, 2)


def results_in_order(world_size: int) -> Snapshot:
    """The result of each rank, at its place."""
    return Snapshot({"results": torch.arange(float(world_size))}, {}, {})


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=0, shows=8, otherwise=CLEAN),
    reports=["open-mpi/ompi#283"],
    tags=["point-to-point", "oracle"],
    min_world_size=3,
    reference=results_in_order,
)
def results_taken_in_order_of_arrival(rank: int) -> Snapshot:
    """Results are received from any rank and taken for those of ranks 1, 2, 3 in turn: the faster rank gets the place.

    A receive without a source takes what comes first. Real gloo hands over whichever message that is.
    """
    results = torch.zeros(dist.get_world_size())
    if rank > 0:
        dist.send(torch.tensor(float(rank)), dst=0)
        return results_in_order(len(results))  # the others know what they sent
    for place in range(1, len(results)):
        dist.recv(results[place])  # found here
    return Snapshot({"results": results}, {}, {})


@repairs(results_taken_in_order_of_arrival)
def results_taken_in_order_of_arrival_repaired(rank: int) -> Snapshot:
    """`recv` returns the rank whose result it took."""
    results = torch.zeros(dist.get_world_size())
    if rank > 0:
        dist.send(torch.tensor(float(rank)), dst=0)
        return results_in_order(len(results))
    for _ in range(1, len(results)):
        result = torch.zeros(())
        results[dist.recv(result)] = result
    return Snapshot({"results": results}, {}, {})
