"""Models that are changed after they were wrapped."""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


def freeze_and_train(rank: int, *, wraps_again: bool) -> None:
    """Freeze the body of a wrapped model, and make two steps."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    body.requires_grad_(False)
    model = DistributedDataParallel(model.module) if wraps_again else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#22049", "NVIDIA/apex#46"],
    tags=["wrapping", "ddp"],
)
def freeze_after_wrap(rank: int) -> None:
    """A layer is frozen after the model was wrapped, and the reducer waits for its gradients forever.

    Which parameters to expect was settled at construction. Real gloo: every rank raises at its second forward; the
    first step was made with gradients that were not averaged. Our engine refuses the first forward, with the names.
    """
    freeze_and_train(rank, wraps_again=False)


@repairs(freeze_after_wrap)
def freeze_after_wrap_repaired(rank: int) -> None:
    """The model is wrapped again after freezing."""
    freeze_and_train(rank, wraps_again=True)


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=["pytorch/pytorch#22049", "NVIDIA/apex#46"],
    tags=["wrapping", "ddp"],
)
def freeze_after_wrap_on_one_rank(rank: int) -> None:
    """One rank freezes a layer of a wrapped model, and the others wait for its part of the gradients.

    The bucket never fills on that rank, which learns of it at its next forward. Real gloo: rank 1 raises there, the
    others see a closed connection. Our engine refuses rank 1's first forward, with the names.
    """
    # Freeze the body once a rank's own loss is small enough, as it is on rank 1.
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [0.9, 0.8, 0.2, 0.1] if rank == 1 else [0.9, 0.8, 0.7, 0.6]
    for loss in losses:
        body.requires_grad_(loss > 0.5)
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()


@repairs(freeze_after_wrap_on_one_rank)
def freeze_after_wrap_on_one_rank_repaired(rank: int) -> None:
    """The ranks agree on the loss, and the model is wrapped again when the body is frozen."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [0.9, 0.8, 0.2, 0.1] if rank == 1 else [0.9, 0.8, 0.7, 0.6]
    for loss in torch.tensor(losses):
        torch.distributed.all_reduce(loss, op=torch.distributed.ReduceOp.MIN)
        if loss <= 0.5 and body.weight.requires_grad:
            body.requires_grad_(False)
            model = DistributedDataParallel(model.module)
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()


def train(model: DistributedDataParallel) -> None:
    """Two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()  # found here


@scenario(expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank), tags=["ddp", "wrapping"])
def initialised_after_wrap(rank: int) -> None:
    """The weights are initialised after the model was wrapped, on each rank with a seed of its own.

    The wrapper sends rank 0's state only while it is constructed. Real gloo shows no error; every rank trains a
    model of its own, with the gradients of all.
    """
    # Seeds differ so that ranks draw different samples, and the weights are drawn as well.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    torch.nn.init.normal_(model.module.weight, std=0.02)
    train(model)


@repairs(initialised_after_wrap)
def initialised_after_wrap_repaired(rank: int) -> None:
    """The weights are drawn before the model is wrapped."""
    torch.manual_seed(rank)
    module = torch.nn.Linear(4, 1)
    torch.nn.init.normal_(module.weight, std=0.02)
    train(DistributedDataParallel(module))


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#12603"],
    tags=["wrapping", "ddp"],
)
def parameter_object_replaced_after_wrap(rank: int) -> None:
    """A parameter of a wrapped model is replaced by a new one, and nothing is averaged in the step that follows.

    The new one has no hook, the old one never gets a gradient: the bucket they share stays open. Real gloo: all
    parameters of the bucket differ after one step; only a second forward would raise. Our engine refuses the first
    one.
    """
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    head.weight = torch.nn.Parameter(torch.zeros(1, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 10)).square().mean().backward()  # found here by ddp
    optimizer.step()  # found here by torch


@repairs(parameter_object_replaced_after_wrap)
def parameter_object_replaced_after_wrap_repaired(rank: int) -> None:
    """The parameter is changed in place."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    torch.nn.init.zeros_(head.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 10)).square().mean().backward()
    optimizer.step()


def train_head_then_all(rank: int, *, wraps_again: bool) -> None:
    """An epoch with a frozen body, and one without."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    body.requires_grad_(False)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        if epoch == 1:
            body.requires_grad_(True)
            model = DistributedDataParallel(model.module) if wraps_again else model
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here by ddp
        optimizer.step()  # found here by torch


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["Lightning-AI/pytorch-lightning#20340", "NVIDIA/apex#46"],
    tags=["wrapping", "ddp"],
)
def unfreeze_after_wrap(rank: int) -> None:
    """A layer is unfrozen after the model was wrapped, and each rank trains it on its own gradients.

    The wrapper has hooks only for the parameters that required a gradient at its construction. Real gloo: no error;
    the layer's parameters differ between ranks. Our engine refuses the next forward, with the names.
    """
    train_head_then_all(rank, wraps_again=False)


@repairs(unfreeze_after_wrap)
def unfreeze_after_wrap_repaired(rank: int) -> None:
    """The model is wrapped again after unfreezing."""
    train_head_then_all(rank, wraps_again=True)
