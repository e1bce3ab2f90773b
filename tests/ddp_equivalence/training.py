"""One description of a training, which the oracle and the engine under test both follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Batch = Tensor
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
    synchronizes_buffers: bool = True

    @property
    def world_size(self) -> int:
        """How many ranks train."""
        return len(self.batches)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer, over the parameters in their order."""
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=self.momentum)

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


def trained(model: nn.Module, buffers: dict[str, Tensor] | None = None) -> Trained:
    """Copies of what `model` has now."""
    return Trained(
        {name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        {name: buffer.clone() for name, buffer in model.named_buffers()} if buffers is None else buffers,
        {name: copied(parameter.grad) for name, parameter in model.named_parameters()},
    )


def copied(gradient: Tensor | None) -> Tensor | None:
    """A copy of a gradient; a sparse one with each index once."""
    if gradient is None:
        return None
    return gradient.detach().coalesce().clone() if gradient.is_sparse else gradient.detach().clone()


def assert_same(actual: Trained, expected: Trained, *, tolerance: float = 1e-12, gradients: bool = True) -> None:
    """Compare two outcomes, tensor by tensor. A tolerance of 0 means to the last bit."""
    for name in ("parameters", "buffers", *(("gradients",) if gradients else ())):
        torch.testing.assert_close(
            getattr(actual, name),
            getattr(expected, name),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def batches(
    *counts: int, features: int = 4, rows: int = 3, dtype: torch.dtype = torch.float64
) -> tuple[tuple[Batch, ...], ...]:
    """Random batches, `counts[rank]` of them for each rank."""
    generator = torch.Generator().manual_seed(len(counts))
    return tuple(
        tuple(torch.randn(rows, features, generator=generator, dtype=dtype) for _ in range(count)) for count in counts
    )


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
