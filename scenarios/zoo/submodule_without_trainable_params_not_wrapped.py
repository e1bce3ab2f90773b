"""A frozen random layer is left out of the wrapper, and each rank keeps a layer of its own.

Frameworks wrap only what has something to train, so rank 0's frozen values are not sent. Real gloo: no error; the
trained head is the same everywhere, and fits none of the projections.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def frozen_projection(seed: int) -> torch.nn.Module:
    """A random layer that is not trained."""
    torch.manual_seed(seed)
    return torch.nn.Linear(10, 4).requires_grad_(False)


def alone(world_size: int) -> Snapshot:
    """The projection that one process would train with."""
    return snapshot(frozen_projection(seed=0))


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=lambda world_size: tuple(range(1, world_size))),
    reports=["speechbrain/speechbrain#2814"],
    tags=["wrapping", "ddp"],
    reference=alone,
)
def submodule_without_trainable_params_not_wrapped(rank: int) -> Snapshot:
    """Draw the projection under the rank's seed, and wrap the head."""
    projection = frozen_projection(seed=rank)
    head = DistributedDataParallel(torch.nn.Linear(4, 1))
    head(projection(torch.randn(8, 10))).square().mean().backward()  # found here
    return snapshot(projection)


@repairs(submodule_without_trainable_params_not_wrapped)
def repaired(rank: int) -> Snapshot:
    """Rank 0 sends its projection."""
    projection = frozen_projection(seed=rank)
    for parameter in projection.parameters():
        torch.distributed.broadcast(parameter, src=0)
    head = DistributedDataParallel(torch.nn.Linear(4, 1))
    head(projection(torch.randn(8, 10))).square().mean().backward()
    return snapshot(projection)
