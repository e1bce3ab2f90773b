"""How one collective becomes many cases: dtype by size, sync and async, on worlds of 1 to 4 and on a subgroup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
import torch.distributed as dist

from tests.semantics.case import Case

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
"""What gloo's collectives take; point-to-point moves bytes and takes every dtype."""

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (5,), (2, 3), (4099,))
SUBGROUP = (1, 3)
SUBGROUP_WORLD_SIZE = 4

_REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
PREMUL_FACTOR = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """What is varied from case to case."""

    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] = (2, 3)
    is_async: bool = False
    reduction: str = "SUM"

    def __str__(self) -> str:
        parts = [dtype_name(self.dtype), shape_name(self.shape), mode_name(self.is_async)]
        return "-".join(parts if self.reduction == "SUM" else [self.reduction, *parts])


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank's place in the group under test; `group` is None for the default group, and in expectations."""

    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    @property
    def index(self) -> int:
        """The group rank."""
        return self.ranks.index(self.rank)

    @property
    def root(self) -> int:
        """The global rank that cases with a root use: the last member, which is no group's default."""
        return self.ranks[-1]


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation: `call` makes it and returns what this rank then holds; `expect` works the same out alone."""

    name: str
    call: Callable[[Seat, Setting], object]
    expect: Callable[[Seat, Setting], object]
    takes_scalars: bool = True


def sample(setting: Setting, *, rank: int, piece: int = 0, shape: Sequence[int] | None = None) -> torch.Tensor:
    """What `rank` puts in: small whole numbers that no two of 4 ranks and 4 pieces share.

    They are small enough for every dtype to add and multiply four of them exactly, in whatever order.
    """
    shape = setting.shape if shape is None else tuple(shape)
    limit = 3 if setting.reduction == "PRODUCT" else 9
    real = _whole_numbers(torch.Size(shape).numel(), seed=4 * rank + piece, limit=limit).reshape(shape)
    if setting.dtype == torch.bool:
        return real % 2 == 1
    if setting.dtype.is_complex:
        imaginary = _whole_numbers(real.numel(), seed=4 * rank + piece + 7, limit=limit).reshape(shape)
        return torch.complex(real.double(), imaginary.double()).to(setting.dtype)
    return (real.abs() if setting.dtype == torch.uint8 else real).to(setting.dtype)


def _whole_numbers(count: int, *, seed: int, limit: int) -> torch.Tensor:
    positions = torch.arange(count)
    numbers = (5 * positions + 3 * seed + positions // 17) % 17 - 8
    return torch.where(numbers < 1, numbers - 1, numbers).clamp(-limit, limit)


def blank(setting: Setting, shape: Sequence[int] | None = None) -> torch.Tensor:
    """A tensor to receive into, filled with something that no rank sends."""
    return torch.full(setting.shape if shape is None else tuple(shape), 77).to(setting.dtype)


def reduced(reduction: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The reduction of the ranks' tensors, in rank order, in plain torch."""
    if reduction == "PREMUL_SUM":
        tensors = [tensor * PREMUL_FACTOR for tensor in tensors]
    result = reduce(_REDUCTIONS[reduction], tensors)
    if reduction != "AVG":
        return result
    if result.is_complex():
        return torch.view_as_complex(torch.view_as_real(result) / len(tensors))
    return result / len(tensors)


def reduce_operation(reduction: str) -> dist.ReduceOp:
    """Torch's value for a reduction's name."""
    if reduction == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(PREMUL_FACTOR)
    return getattr(dist.ReduceOp, reduction)


def settle(work: dist.Work | None, setting: Setting) -> None:
    """End a call that was issued in the setting's mode: only an async one hands out a work."""
    assert (work is not None) == setting.is_async
    if work is not None:
        assert work.wait()


def sweep(collective: Collective) -> Iterator[Case]:
    """Every dtype in both modes; every shape on every world; on a subgroup, all shapes in one program."""
    for dtype in DTYPES:
        for is_async in (False, True):
            yield world_case(collective, Setting(dtype=dtype, is_async=is_async), world_size=2)
    shapes = [shape for shape in SHAPES if shape or collective.takes_scalars]
    for world_size in (1, 2, 3, 4):
        for shape in shapes:
            if world_size == 2 and shape == Setting().shape:
                continue
            yield world_case(collective, Setting(shape=shape), world_size=world_size)
        if world_size != 2:
            yield world_case(collective, Setting(is_async=True), world_size=world_size)
    for is_async in (False, True):
        yield subgroup_case(
            collective, [Setting(shape=shape, is_async=is_async) for shape in shapes], name=mode_name(is_async)
        )


def world_case(
    collective: Collective,
    setting: Setting,
    *,
    world_size: int,
    tolerance: float = 0.0,
    gloo_refuses: str | None = None,
) -> Case:
    """One call on the default group."""
    ranks = tuple(range(world_size))
    return Case(
        id=f"{collective.name}-{setting}-world{world_size}",
        world_size=world_size,
        program=lambda rank: collective.call(Seat(ranks, rank), setting),
        expected=lambda rank: collective.expect(Seat(ranks, rank), setting),
        tolerance=tolerance,
        gloo_refuses=gloo_refuses,
    )


def subgroup_case(collective: Collective, settings: Sequence[Setting], *, name: str) -> Case:
    """One call after another on a group of ranks 1 and 3 of 4, of which the others are no members."""

    def program(rank: int) -> object:
        group = dist.new_group(list(SUBGROUP))
        if rank not in SUBGROUP:
            return None
        return [collective.call(Seat(SUBGROUP, rank, group), setting) for setting in settings]

    def expected(rank: int) -> object:
        if rank not in SUBGROUP:
            return None
        return [collective.expect(Seat(SUBGROUP, rank), setting) for setting in settings]

    return Case(f"{collective.name}-subgroup-{name}", SUBGROUP_WORLD_SIZE, program, expected)


def with_marks(cases: Iterable[Case], *, gloo_refuses: str, where: Callable[[Case], bool]) -> Iterator[Case]:
    """The same cases; those that `where` picks are marked as refused by gloo."""
    for case in cases:
        yield replace(case, gloo_refuses=gloo_refuses) if where(case) else case


def dtype_name(dtype: torch.dtype) -> str:
    """The short name, as in `float32`."""
    return str(dtype).removeprefix("torch.")


def shape_name(shape: tuple[int, ...]) -> str:
    """The sizes, as in `2x3`."""
    return "x".join(map(str, shape)) or "scalar"


def mode_name(is_async: bool) -> str:
    """`async` or `sync`."""
    return "async" if is_async else "sync"
