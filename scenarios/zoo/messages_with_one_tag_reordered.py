"""Two messages of one size and tag are received in the other order: each tensor gets the values of the other.

Messages between two ranks meet in the order in which they are sent, unless tags distinguish them. Real gloo exchanges
the values without a word, so only a comparison with what they should be shows it.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def trained() -> torch.nn.Module:
    """Two layers of the same shape."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))


def alone(world_size: int) -> Snapshot:
    """What every rank should hold."""
    return snapshot(trained())


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=1),
    reports=["ByteDance-Seed/VeOmni#1085", "pytorch/pytorch#94819"],
    tags=["point-to-point", "oracle"],
    reference=alone,
)
def messages_with_one_tag_reordered(rank: int) -> Snapshot:
    """Copy two layers from rank 0 to rank 1, which asks for the second one first."""
    model = trained()
    first, second = (weight.detach() for weight in model.parameters())
    if rank == 0:
        copy = [dist.P2POp(dist.isend, first, 1), dist.P2POp(dist.isend, second, 1)]
    else:
        copy = [dist.P2POp(dist.irecv, second, 0), dist.P2POp(dist.irecv, first, 0)]
    for work in dist.batch_isend_irecv(copy) if rank < 2 else []:  # found here
        work.wait()
    return snapshot(model)


@repairs(messages_with_one_tag_reordered)
def repaired(rank: int) -> Snapshot:
    """Each layer has a tag of its own; under NCCL, which knows no tags, receive in the order of the sends."""
    model = trained()
    first, second = (weight.detach() for weight in model.parameters())
    if rank == 0:
        copy = [dist.P2POp(dist.isend, first, 1, tag=1), dist.P2POp(dist.isend, second, 1, tag=2)]
    else:
        copy = [dist.P2POp(dist.irecv, second, 0, tag=2), dist.P2POp(dist.irecv, first, 0, tag=1)]
    for work in dist.batch_isend_irecv(copy) if rank < 2 else []:
        work.wait()
    return snapshot(model)
