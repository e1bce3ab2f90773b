"""Collectives that a program makes in its loop: how they are called, and in plain arithmetic what a rank has then.

One table, which runs inside a join on the simulated group and on real gloo. A rank has as many numbers as there are
ranks, or a multiple of that. Nothing here imports the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any


def values(rank: int, iteration: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A rank's; how many there are depends on the iteration."""
    return (torch.arange(size * (1 + iteration)) % 5 - 3 - rank).to(dtype)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What takes part in a call."""

    by_rank: Sequence[Tensor | None]
    """None for a rank that has joined."""
    rank: int
    """Whose result is asked for. It has not joined."""
    root: int

    @property
    def present(self) -> list[Tensor]:
        """Of ranks with input."""
        return [values for values in self.by_rank if values is not None]

    @property
    def filled(self) -> list[Tensor]:
        """Of all, zeros for ranks that have joined."""
        return [torch.zeros_like(self.present[0]) if values is None else values for values in self.by_rank]

    def parts(self, of: Tensor) -> tuple[Tensor, ...]:
        """One for each rank."""
        return of.chunk(len(self.by_rank))


Call = Callable[[Tensor, int, Group], object]
"""From a rank's values, the root and the group."""


def _in_place(call: Callable[..., object], rooted: str = "", **how: Any) -> Call:
    """A collective that changes its argument, on all ranks or on its root alone."""

    def made(values: Tensor, root: int, group: Group) -> object:
        call(values, group=group, **how, **({rooted: root} if rooted else {}))
        return None if rooted == "dst" and dist.get_rank() != root else values

    return made


def _async(values: Tensor, root: int, group: Group) -> object:
    work = dist.all_reduce(values, group=group, async_op=True)
    work.wait()
    return values


def _as_tensor(call: Callable[..., object], grows: Callable[[int], float], **how: Any) -> Call:
    """A collective from one tensor to another, which has `grows(size)` times as many elements."""

    def made(values: Tensor, root: int, group: Group) -> object:
        size = dist.get_world_size()
        output = values.new_empty(round(len(values) * grows(size)))
        splits = [[len(values) // size] * size] * 2 if how.get("splits") else []
        call(output, values, *splits, group=group)
        return output

    return made


def _all_gather(values: Tensor, root: int, group: Group) -> object:
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values, group=group)
    return torch.cat(parts)


def _gather(to_root: bool) -> Call:
    def made(values: Tensor, root: int, group: Group) -> object:
        to = root if to_root else 0
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())] if dist.get_rank() == to else None
        dist.gather(values, parts, to, group=group)
        return parts and torch.cat(parts)

    return made


def _parts(values: Tensor) -> list[Tensor]:
    return [part.clone() for part in values.chunk(dist.get_world_size())]


def _reduce_scatter(values: Tensor, root: int, group: Group) -> object:
    output = torch.empty_like(_parts(values)[0])
    dist.reduce_scatter(output, _parts(values), group=group)
    return output


def _scatter(values: Tensor, root: int, group: Group) -> object:
    output = torch.empty_like(_parts(values)[0])
    dist.scatter(output, _parts(values) if dist.get_rank() == root else None, root, group=group)
    return output


def _all_to_all(values: Tensor, root: int, group: Group) -> object:
    parts = [torch.empty_like(part) for part in _parts(values)]
    dist.all_to_all(parts, _parts(values), group=group)
    return torch.cat(parts)


def _barrier(values: Tensor, root: int, group: Group) -> object:
    dist.barrier(group=group)
    return values


def _all_gather_object(values: Tensor, root: int, group: Group) -> object:
    objects: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"values": values.tolist(), "text": "x" * 10 * dist.get_rank()}, group=group)
    return [found and found["values"] for found in objects]


def _broadcast_object_list(values: Tensor, root: int, group: Group) -> object:
    told = [values.tolist()]
    dist.broadcast_object_list(told, root, group=group)
    return told


def _gather_object(values: Tensor, root: int, group: Group) -> object:
    objects: list[object] | None = [None] * dist.get_world_size() if dist.get_rank() == root else None
    dist.gather_object(values.tolist(), objects, root, group=group)
    return objects


def _exchanged(inputs: Inputs) -> Tensor:
    return torch.cat([inputs.parts(values)[inputs.rank] for values in inputs.filled])


def _lists(inputs: Inputs) -> list[list[float] | None]:
    return [None if values is None else values.tolist() for values in inputs.by_rank]


COLLECTIVES: dict[str, tuple[Call, Callable[[Inputs], object]]] = {
    "all_reduce": (_in_place(dist.all_reduce), lambda i: sum(i.filled)),
    "all_reduce, async": (_async, lambda i: sum(i.filled)),
    "product": (_in_place(dist.all_reduce, op=dist.ReduceOp.PRODUCT), lambda i: reduce(torch.mul, i.present)),
    "maximum": (_in_place(dist.all_reduce, op=dist.ReduceOp.MAX), lambda i: reduce(torch.maximum, i.present)),
    "minimum": (_in_place(dist.all_reduce, op=dist.ReduceOp.MIN), lambda i: reduce(torch.minimum, i.present)),
    "reduce": (_in_place(dist.reduce, "dst"), lambda i: sum(i.filled) if i.rank == i.root else None),
    "broadcast": (_in_place(dist.broadcast, "src"), lambda i: i.filled[i.root]),
    "all_gather": (_all_gather, lambda i: torch.cat(i.filled)),
    "all_gather_into_tensor": (
        _as_tensor(dist.all_gather_into_tensor, lambda size: size),
        lambda i: torch.cat(i.filled),
    ),
    "gather": (_gather(to_root=True), lambda i: torch.cat(i.filled) if i.rank == i.root else None),
    "gather to rank 0": (_gather(to_root=False), lambda i: torch.cat(i.filled) if i.rank == 0 else None),
    "reduce_scatter": (_reduce_scatter, lambda i: i.parts(sum(i.filled))[i.rank]),
    "reduce_scatter_tensor": (
        _as_tensor(dist.reduce_scatter_tensor, lambda size: 1 / size),
        lambda i: i.parts(sum(i.filled))[i.rank],
    ),
    "scatter": (_scatter, lambda i: i.parts(i.filled[i.root])[i.rank]),
    "all_to_all": (_all_to_all, _exchanged),
    "all_to_all_single": (_as_tensor(dist.all_to_all_single, lambda size: 1), _exchanged),
    "all_to_all_single, splits": (_as_tensor(dist.all_to_all_single, lambda size: 1, splits=True), _exchanged),
    "barrier": (_barrier, lambda i: i.filled[i.rank]),
    "all_gather_object": (_all_gather_object, _lists),
    "broadcast_object_list": (_broadcast_object_list, lambda i: [_lists(i)[i.root]]),
    "gather_object": (_gather_object, lambda i: _lists(i) if i.rank == i.root else None),
}
NOT_ON_GLOO = ("all_to_all",)


def made(names: Sequence[str], own: Tensor, root: int, group: Group = None) -> dict[str, object]:
    """What this rank has of each."""
    return {name: COLLECTIVES[name][0](own.clone(), root, group) for name in names}


def assert_made(found: dict[str, object], inputs: Inputs) -> None:
    """Compare what `made` returned."""
    for name, actual in found.items():
        wanted = COLLECTIVES[name][1](inputs)
        is_same = torch.equal(actual, wanted) if isinstance(wanted, Tensor) else actual == wanted
        assert is_same, f"{name}: {actual}, expected {wanted}"
