"""One training for two engines: what is built, what each rank sees, and everything a rank has after every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine

Snapshot = dict[str, "Tensor | None"]
"""Parameters, buffers and gradients, by name."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained, and how."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """Of a batch."""
    counts: tuple[int, ...]
    """Batches, by rank."""
    options: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any, Tensor], Tensor] = lambda model, batch: model(batch).square().mean()
    hook: Callable[[Any], object] | None = None
    """Given the wrapper, registers a communication hook."""
    dtype: torch.dtype = torch.float32
    accumulate: int = 1
    """Batches to a step, all but the last under no_sync."""
    set_to_none: bool = True
    divides_by_initial_size: bool | None = None
    """Under join, if given."""


def train(rank: int, case: Case, wrap: Callable[..., Any], options: Mapping[str, Any]) -> list[Snapshot]:
    """The program of a rank: snapshots after every backward that reduces, after every step, and at the end."""
    torch.manual_seed(rank)
    module = case.build()
    model = wrap(module, **case.options, **options)
    if case.hook is not None:
        case.hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    divides = case.divides_by_initial_size
    history: list[Snapshot] = []
    with nullcontext() if divides is None else model.join(divide_by_initial_world_size=divides):
        for index in range(case.counts[rank]):
            if index % case.accumulate == 0:
                optimizer.zero_grad(set_to_none=case.set_to_none)
            is_last = (index + 1) % case.accumulate == 0
            with nullcontext() if is_last else model.no_sync():
                case.loss(model, torch.randn(case.shape, dtype=case.dtype)).backward()
            history.append(snapshot(module))
            if is_last:
                optimizer.step()
                history.append(snapshot(module))
    history.append(snapshot(module, has_gradients=divides is None))
    return history


def snapshot(module: nn.Module, *, has_gradients: bool = True) -> Snapshot:
    """Copies of all that a rank has."""
    found: Snapshot = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    if has_gradients:
        found |= {f"gradient of {name}": copied(parameter.grad) for name, parameter in module.named_parameters()}
    return found


def copied(gradient: Tensor | None) -> Tensor | None:
    """A copy; of a sparse one, with each index once."""
    if gradient is None:
        return None
    return gradient.detach().coalesce() if gradient.is_sparse else gradient.detach().clone()


def assert_equal(case: Case, own_options: Mapping[str, Any], torch_options: Mapping[str, Any]) -> None:
    """Train with both engines, and compare everything to the last bit."""
    histories = []
    for wrap, options in ((OwnEngine, own_options), (TorchEngine, torch_options)):
        result = simulate(train, len(case.counts), args=(case, wrap, options))
        result.raise_for_verdict()
        histories.append(result.returns)
    told = f"{len(case.counts)} ranks, ours with {dict(own_options)}, torch's with {dict(torch_options)}"
    for rank, (own, theirs) in enumerate(zip(*histories, strict=True)):
        for index, (actual, wanted) in enumerate(zip(own, theirs, strict=True)):
            differing = [name for name in wanted if not is_same(actual[name], wanted[name])]
            assert not differing, f"{told}: rank {rank}, snapshot {index}, {differing}"
            assert actual.keys() == wanted.keys()
    assert any(len(own) > 1 for own in histories[0])


def is_same(actual: Tensor | None, wanted: Tensor | None) -> bool:
    """Whether two tensors, or what there is instead, have the same bits, shape, dtype and layout."""
    if actual is None or wanted is None:
        return actual is wanted
    if actual.layout != wanted.layout or actual.dtype != wanted.dtype:
        return False
    if wanted.is_sparse:
        return torch.equal(actual.indices(), wanted.indices()) and torch.equal(actual.values(), wanted.values())
    return torch.equal(actual, wanted)
