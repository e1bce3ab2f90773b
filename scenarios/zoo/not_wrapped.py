"""Models and parts of models that train without the wrapper, or are wrapped without rank 0's state."""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["jingyaogong/minimind#853", "jingyaogong/minimind#854", "bytetriper/RAE#40", "kohya-ss/sd-scripts#924"],
    tags=["reducer", "ddp"],
)
def inner_module_used_for_the_loss(rank: int) -> None:
    """The loss comes from a forward of the inner module, and each rank trains a model of its own.

    Only a forward through the wrapper arms the reducer. Real gloo: no error; the parameters differ from the first
    step on. Our engine notices the backward that was not announced, and raises.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model.module(torch.randn(8, 10)).square().mean().backward()  # found here by ddp
        optimizer.step()  # found here by torch


@repairs(inner_module_used_for_the_loss)
def inner_module_used_for_the_loss_repaired(rank: int) -> None:
    """The loss comes from the wrapper."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()


@scenario(expected=finds(Code.UNCHECKED, ranks=every_rank), tags=["ddp"], check="replicas")
def model_never_wrapped(rank: int) -> None:
    """No rank wraps the model and none reduces a gradient, so each rank trains a model of its own, and all looks well.

    A check of replicas that was asked for finds none to compare. It must not say that all is well: it says unknown.
    """
    torch.manual_seed(0)
    _train(torch.nn.Linear(2, 1), rank)


@repairs(model_never_wrapped)
def model_never_wrapped_repaired(rank: int) -> None:
    """The model is wrapped."""
    torch.manual_seed(0)
    _train(DistributedDataParallel(torch.nn.Linear(2, 1)), rank)


def _train(model: torch.nn.Module, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.full((2, 2), rank + 1.0)).sum().backward()
    optimizer.step()


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
    """A frozen random layer is left out of the wrapper, and each rank keeps a layer of its own.

    Frameworks wrap only what has something to train, so rank 0's frozen values are not sent. Real gloo: no error;
    the trained head is the same everywhere, and fits none of the projections.
    """
    projection = frozen_projection(seed=rank)
    head = DistributedDataParallel(torch.nn.Linear(4, 1))
    head(projection(torch.randn(8, 10))).square().mean().backward()  # found here
    return snapshot(projection)


@repairs(submodule_without_trainable_params_not_wrapped)
def submodule_without_trainable_params_not_wrapped_repaired(rank: int) -> Snapshot:
    """Rank 0 sends its projection."""
    projection = frozen_projection(seed=rank)
    for parameter in projection.parameters():
        torch.distributed.broadcast(parameter, src=0)
    head = DistributedDataParallel(torch.nn.Linear(4, 1))
    head(projection(torch.randn(8, 10))).square().mean().backward()
    return snapshot(projection)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["pytorch/pytorch#142824"],
    tags=["wrapping", "ddp"],
)
def wrapped_without_initial_sync(rank: int) -> None:
    """Wrapping does not send rank 0's state, and each rank trains the weights it happened to draw.

    `init_sync=False` leaves it to the program that all ranks start with equal state. Real gloo: no error; the
    replicas keep the difference they began with.
    """
    # Save the initial broadcast although the ranks have seeds of their own.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1), init_sync=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()  # found here


@repairs(wrapped_without_initial_sync)
def wrapped_without_initial_sync_repaired(rank: int) -> None:
    """The model is built under one seed, and the data drawn under another."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(10, 1), init_sync=False)
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
