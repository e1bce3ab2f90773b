"""Small networks, in float64 unless the test is about another dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.kit.training import Batch, batches, ramp


def multilayer() -> nn.Module:
    """Six parameters of different sizes."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def with_buffers() -> nn.Module:
    """BatchNorm's running statistics are buffers, one of them an integer."""
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()


def registered_backwards() -> nn.Module:
    """Used in the opposite order to that of registration: gradients come in an order that DDP does not expect."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(5, 2)
            self.first = nn.Linear(4, 5)

        def forward(self, batch: Tensor) -> Tensor:
            return self.last(self.first(batch).tanh())

    return Backwards().double()


class Branching(nn.Module):
    """The first number of a batch says which branch it goes through; branch 9 is none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.branches = nn.ModuleList([nn.Linear(3, 2) for _ in range(3)])

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.first(batch).tanh()
        branch = int(batch[0, 0])
        return self.branches[branch](hidden) if branch < 3 else hidden


def branching() -> nn.Module:
    """In float64."""
    return Branching().double()


def branches(*taken: Sequence[int]) -> tuple[tuple[Batch, ...], ...]:
    """Batches for `Branching`: `taken[rank]` are the branches that the rank takes, one after the other."""
    plain = batches(*map(len, taken))
    for own, numbers in zip(plain, taken, strict=True):
        for batch, number in zip(own, numbers, strict=True):
            batch[0, 0] = number
    return plain


class Branches(nn.Module):
    """Told in the forward which of its layers to use, after a common one."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Linear(3, 3, dtype=torch.float64)
        self.a, self.b, self.c = (nn.Linear(3, 2, dtype=torch.float64) for _ in range(3))

    def forward(self, names: str, rank: int = 0) -> Tensor:
        hidden = self.common(ramp(rank, features=3)).tanh()
        return sum((getattr(self, name)(hidden) for name in names), hidden.sum())

    @staticmethod
    def using(*names: str) -> Callable[[nn.Module, int], Tensor]:
        """A loss with `names[rank]`."""
        return lambda model, rank: model(names[rank], rank).pow(2).sum()


class TwoOutputs(nn.Module):
    """Two layers on one batch, an output of each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2, dtype=torch.float64), nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, batch: Tensor) -> dict[str, object]:
        return {"first": self.first(batch), "second": (self.second(batch), "text")}

    @staticmethod
    def losses(output: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """One of each output."""
        return output["first"].pow(2).sum(), output["second"][0].pow(3).sum()


class Residual(nn.Module):
    """Two convolutions with BatchNorm around which the input passes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.block = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
        )
        self.head = nn.Linear(4, 3)

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.norm(self.stem(batch)).relu()
        hidden = (hidden + self.block(hidden)).relu()
        return self.head(hidden.mean(dim=(2, 3)))


class Mixed(nn.Module):
    """A parameter of each dtype, each with a gradient that depends on it."""

    DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.randn(5).to(dtype) for dtype in self.DTYPES * 2])

    def forward(self, batch: Tensor) -> Tensor:
        return sum((scale * batch.to(scale.dtype)).abs().double().sum(dim=0) for scale in self.scales)


class Sparse(nn.Module):
    """An embedding of which every batch uses some rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 3, sparse=True)
        self.out = nn.Linear(3, 2)

    def forward(self, batch: Tensor) -> Tensor:
        return self.out(self.table((batch.abs() * 3).long() % 6).sum(dim=1))


class Checkpointed(nn.Module):
    """A layer whose forward runs again in the backward, `times` times."""

    def __init__(self, *, is_reentrant: bool, times: int = 1) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.is_reentrant, self.times = is_reentrant, times

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.first(batch)
        for _ in range(self.times):
            hidden = checkpoint(lambda value: self.middle(value).tanh(), hidden, use_reentrant=self.is_reentrant)
        return self.last(hidden)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _SumOverRanks.forward(ctx, gradient.contiguous())


class Normalizing(nn.Module):
    """What SyncBatchNorm does, on any device: statistics of all ranks' rows, with gradients through them.

    `total` adds up over the ranks; in one process that has all rows there is nothing to add.
    """

    def __init__(self, total: Callable[[Tensor], Tensor] = _SumOverRanks.apply) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3, dtype=torch.float64), nn.Linear(3, 2, dtype=torch.float64)
        self.total = total

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.first(batch)
        rows = hidden.new_full((1,), len(hidden))
        sums = self.total(torch.cat([hidden.sum(dim=0), hidden.square().sum(dim=0), rows]))
        mean, square = (sums[:-1] / sums[-1]).chunk(2)
        return self.last((hidden - mean) / (square - mean.square() + 1e-3).sqrt())


class OneUnused(nn.Module):
    """A layer that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3).double()
        self.used = multilayer()

    def forward(self, batch: Tensor) -> Tensor:
        return self.used(batch)


class Chain(nn.Module):
    """Scalars named by letters, used in the order that a forward is told; gradients come in the opposite one."""

    def __init__(self, names: str = "abc") -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones((), dtype=torch.float64)))

    def forward(self, order: str, value: Tensor) -> Tensor:
        for name in order:
            value = (value * getattr(self, name)).tanh()
        return value

    @staticmethod
    def using(*orders: str) -> Callable[[nn.Module, int], Tensor]:
        """A loss with `orders[rank]`."""
        return lambda model, rank: model(orders[rank], torch.tensor(0.5 + rank, dtype=torch.float64))
