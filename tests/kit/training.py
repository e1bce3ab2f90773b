"""One description of a training, which the oracle and the engines under test all follow; knows no simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ddpsim.ddp import DistributedDataParallel

TINY = 1e-5
"""MiB: a bucket is full after 10 bytes, so every parameter has its own."""

Batch = Tensor
Module = TypeVar("Module", bound=nn.Module)
Prepare = Callable[[Any], object]
"""Given the wrapper: registers a communication hook, for instance."""
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained, and on what. How ranks come together is the business of whoever trains."""

    build: Callable[[], nn.Module]
    batches: tuple[tuple[Batch, ...], ...]
    """By rank."""
    loss: Loss
    is_joined: bool = False
    """Ranks may have different numbers of batches."""
    divide_by_initial_world_size: bool = True
    accumulate: int = 1
    """Batches to an optimizer step; gradients meet in the last one only."""
    clear_gradients: bool = True
    set_to_none: bool = True
    momentum: float = 0.0
    weight_decay: float = 0.0
    """A parameter without a gradient then differs from one whose gradient is zero."""
    synchronizes_buffers: bool = True

    @property
    def world_size(self) -> int:
        """How many ranks train."""
        return len(self.batches)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer, over the parameters in their order."""
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=self.momentum, weight_decay=self.weight_decay)

    def opens_step(self, iteration: int) -> bool:
        """Whether an optimizer step's batches begin here."""
        return iteration % self.accumulate == 0

    def closes_step(self, iteration: int) -> bool:
        """Whether an optimizer step's batches end here."""
        return (iteration + 1) % self.accumulate == 0


@dataclass(frozen=True, slots=True)
class Trained:
    """What a rank has at the end."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    gradients: dict[str, Tensor | None]
    plan: tuple[tuple[str, ...], ...] | None = None
    """The layout of our engine's buckets."""


def train(
    rank: int,
    training: Training,
    options: Mapping[str, Any],
    prepare: Prepare | None = None,
    wrap: Callable[..., Any] = DistributedDataParallel,
) -> Trained:
    """The program of a rank. Each starts from parameters of its own, so only the engine makes them equal."""
    torch.manual_seed(rank)
    return train_module(rank, training, training.build(), options, prepare, wrap)


def train_module(
    rank: int,
    training: Training,
    module: nn.Module,
    options: Mapping[str, Any],
    prepare: Prepare | None = None,
    wrap: Callable[..., Any] = DistributedDataParallel,
    on_change: Callable[[], object] = lambda: None,
) -> Trained:
    """Wrap `module`, train it on this rank's batches, and return what it has then."""
    model = wrap(module, **options)
    if prepare is not None:
        prepare(model)
    join = {"divide_by_initial_world_size": training.divide_by_initial_world_size}
    # Making the join context already changes what forwards communicate.
    with model.join(**join) if training.is_joined else nullcontext():
        steps(model, training.optimizer(model), training, training.batches[rank], on_change)
    return trained(module, getattr(model.reducer, "bucket_plan", None))


def steps(
    model: Any,
    optimizer: torch.optim.Optimizer,
    training: Training,
    batches: Sequence[Tensor],
    on_change: Callable[[], object] = lambda: None,
) -> None:
    """The loop of a rank; `on_change` is called after each backward, and each step of the optimizer."""
    for iteration, batch in enumerate(batches):
        if training.clear_gradients and training.opens_step(iteration):
            optimizer.zero_grad(set_to_none=training.set_to_none)
        with nullcontext() if training.closes_step(iteration) else model.no_sync():
            training.loss(model, batch).backward()
        on_change()
        if training.closes_step(iteration):
            optimizer.step()
            on_change()


def trained(model: nn.Module, plan: tuple[tuple[str, ...], ...] | None = None) -> Trained:
    """Copies of what `model` has now."""
    return Trained(
        {name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        {name: buffer.clone() for name, buffer in model.named_buffers()},
        {name: copied(parameter.grad) for name, parameter in model.named_parameters()},
        plan,
    )


def copied(gradient: Tensor | None) -> Tensor | None:
    """A copy of a gradient; a sparse one with each index once."""
    if gradient is None:
        return None
    return gradient.detach().coalesce().clone() if gradient.is_sparse else gradient.detach().clone()


def assert_same(
    actual: Trained, expected: Trained, *, tolerance: float = 1e-12, gradients: bool = True, what: str = ""
) -> None:
    """Compare two outcomes, tensor by tensor; a tolerance of 0 means to the last bit. `what` begins the message."""
    for name in ("parameters", "buffers", *(("gradients",) if gradients else ())):
        torch.testing.assert_close(
            getattr(actual, name),
            getattr(expected, name),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{what}{name}: {text}",
        )


def assert_each(actual: Iterable[Trained], expected: Iterable[Trained], **how: Any) -> None:
    """Compare the outcomes of all ranks, as `assert_same` does."""
    for own, wanted in zip(actual, expected, strict=True):
        assert_same(own, wanted, **how)


def batches(
    *counts: int, features: int = 4, rows: int = 3, dtype: torch.dtype = torch.float64
) -> tuple[tuple[Batch, ...], ...]:
    """Random batches, `counts[rank]` of them for each rank."""
    generator = torch.Generator().manual_seed(len(counts))
    return tuple(
        tuple(torch.randn(rows, features, generator=generator, dtype=dtype) for _ in range(count)) for count in counts
    )


def seeded(build: Callable[[], Module], seed: int = 0) -> Module:
    """The same module on each call; the generator of random numbers stays as it is."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def ramp(rank: int, number: int = 0, features: int = 4) -> Tensor:
    """A batch of two rows that differs between ranks, and by number."""
    return torch.linspace(-1 - number, 1 + rank, 2 * features, dtype=torch.float64).view(2, features)


def mean_square(model: nn.Module, batch: Batch) -> Tensor:
    """A loss whose gradient differs in every row."""
    return model(batch).pow(2).mean()


def equal_batches(world_size: int, count: int = 3) -> tuple[tuple[Batch, ...], ...]:
    """The same number of batches for every rank."""
    return batches(*[count] * world_size)


def uneven_batches(world_size: int) -> tuple[tuple[Batch, ...], ...]:
    """3, 1, 4, 1, 5, ... batches: the last to join is neither the first rank nor the last."""
    digits = "31415926535897932384626433832795"
    return batches(*(int(digits[rank % 32]) for rank in range(world_size)))
