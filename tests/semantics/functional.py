"""Cases of the functional collectives and of the coalescing manager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.semantics.case import Case
from tests.semantics.movement import all_gather_single
from tests.semantics.reductions import reduce_scatter_single
from tests.semantics.sweep import DTYPES, Setting, dtype_name, reduced, sample

WORLD_SIZE = 2
VECTOR = Setting(shape=(4,))
MATRIX = Setting(shape=(4, 2))
SHORT = Setting(shape=(2,))


def cases() -> Iterator[Case]:
    yield from _functional()
    yield from _functional_dtypes()
    yield from _functional_groups()
    yield Case("functional-waits-by-itself", WORLD_SIZE, _used_without_wait, lambda rank: _total(VECTOR) * 2)
    yield Case("functional-several-in-flight", WORLD_SIZE, _several, lambda rank: [_total(VECTOR), _total(SHORT)])
    yield Case("functional-in-place", WORLD_SIZE, _in_place, lambda rank: [_total(VECTOR), sample(VECTOR, rank=1)])
    yield from _coalesced()


def _inputs(setting: Setting, world_size: int = WORLD_SIZE) -> list[torch.Tensor]:
    return [sample(setting, rank=rank) for rank in range(world_size)]


def _total(setting: Setting, reduction: str = "SUM") -> torch.Tensor:
    return reduced(reduction, _inputs(setting))


def _waited(value: object) -> object:
    """The tensors of a functional collective, as plain ones."""
    if isinstance(value, (list, tuple)):
        return [_waited(each) for each in value]
    return functional.wait_tensor(value)


def _functional() -> Iterator[Case]:
    calls: dict[str, tuple[Callable[[int], object], Callable[[int], object]]] = {
        "broadcast": (
            lambda rank: functional.broadcast(sample(VECTOR, rank=rank), 1, dist.group.WORLD),
            lambda rank: sample(VECTOR, rank=1),
        ),
        "all_reduce_coalesced": (
            lambda rank: functional.all_reduce_coalesced(
                [sample(VECTOR, rank=rank), sample(SHORT, rank=rank)], "sum", dist.group.WORLD
            ),
            lambda rank: [_total(VECTOR), _total(SHORT)],
        ),
        "all_gather_tensor": (
            lambda rank: functional.all_gather_tensor(sample(MATRIX, rank=rank), 0, dist.group.WORLD),
            lambda rank: torch.cat(_inputs(MATRIX)),
        ),
        "all_gather_tensor-dim1": (
            lambda rank: functional.all_gather_tensor(sample(MATRIX, rank=rank), 1, dist.group.WORLD),
            lambda rank: torch.cat(_inputs(MATRIX), dim=1),
        ),
        "all_gather_into_tensor_coalesced": (
            lambda rank: functional.all_gather_into_tensor_coalesced(
                [sample(MATRIX, rank=rank), sample(SHORT, rank=rank)], dist.group.WORLD
            ),
            lambda rank: [torch.cat(_inputs(MATRIX)), torch.cat(_inputs(SHORT))],
        ),
        "reduce_scatter_tensor-dim1": (
            lambda rank: functional.reduce_scatter_tensor(sample(MATRIX, rank=rank), "sum", 1, dist.group.WORLD),
            lambda rank: _total(MATRIX).chunk(WORLD_SIZE, dim=1)[rank].contiguous(),
        ),
        "reduce_scatter_tensor_coalesced": (
            lambda rank: functional.reduce_scatter_tensor_coalesced(
                [sample(MATRIX, rank=rank), sample(VECTOR, rank=rank)], "sum", [0, 0], dist.group.WORLD
            ),
            lambda rank: [_total(MATRIX).chunk(WORLD_SIZE)[rank], _total(VECTOR).chunk(WORLD_SIZE)[rank]],
        ),
        "all_to_all_single": (
            lambda rank: functional.all_to_all_single(sample(MATRIX, rank=rank), None, None, dist.group.WORLD),
            lambda rank: torch.cat([each.chunk(WORLD_SIZE)[rank] for each in _inputs(MATRIX)]),
        ),
        "all_to_all_single-splits": (
            lambda rank: functional.all_to_all_single(
                sample(MATRIX, rank=rank), [1 + 2 * rank] * 2, [1, 3], dist.group.WORLD
            ),
            lambda rank: torch.cat([each.split([1, 3])[rank] for each in _inputs(MATRIX)]),
        ),
        "permute_tensor": (
            lambda rank: functional.permute_tensor(sample(VECTOR, rank=rank), [1, 0], dist.group.WORLD),
            lambda rank: sample(VECTOR, rank=1 - rank),
        ),
    }
    for reduction in ("SUM", "AVG", "MAX", "MIN", "PRODUCT"):
        setting = Setting(shape=(4,), reduction=reduction)
        calls[f"all_reduce-{reduction}"] = (
            lambda rank, setting=setting: functional.all_reduce(
                sample(setting, rank=rank), setting.reduction.lower(), dist.group.WORLD
            ),
            lambda rank, setting=setting: _total(setting, setting.reduction),
        )
        calls[f"reduce_scatter_tensor-{reduction}"] = (
            lambda rank, setting=setting: functional.reduce_scatter_tensor(
                sample(setting, rank=rank), setting.reduction.lower(), 0, dist.group.WORLD
            ),
            lambda rank, setting=setting: _total(setting, setting.reduction).chunk(WORLD_SIZE)[rank],
        )
    for name, (call, expected) in calls.items():
        yield Case(f"functional-{name}", WORLD_SIZE, lambda rank, call=call: _waited(call(rank)), expected)


def _functional_dtypes() -> Iterator[Case]:
    for dtype in DTYPES:
        setting = Setting(dtype=dtype, shape=(4,))

        def program(rank: int, setting: Setting = setting) -> object:
            tensor = sample(setting, rank=rank)
            return [
                _waited(functional.all_reduce(tensor, "sum", dist.group.WORLD)),
                _waited(functional.all_gather_tensor(tensor, 0, dist.group.WORLD)),
                tensor,
            ]

        def expected(rank: int, setting: Setting = setting) -> object:
            return [_total(setting), torch.cat(_inputs(setting)), sample(setting, rank=rank)]

        yield Case(f"functional-{dtype_name(dtype)}", WORLD_SIZE, program, expected)


def _functional_groups() -> Iterator[Case]:
    """A group may be given as itself, by name, by its ranks, or as a dimension of a mesh."""

    def by_all_names(rank: int) -> object:
        group = dist.group.WORLD
        return [
            _waited(functional.all_reduce(sample(VECTOR, rank=rank), "sum", name))
            for name in (group, group.group_name, [0, 1])
        ]

    yield Case("functional-group-names", WORLD_SIZE, by_all_names, lambda rank: [_total(VECTOR)] * 3)

    def on_subgroup(rank: int) -> object:
        group = dist.new_group([1, 3])
        if rank not in (1, 3):
            return None
        tensor = sample(VECTOR, rank=rank)
        return [
            _waited(functional.all_reduce(tensor, "sum", group)),
            _waited(functional.all_gather_tensor(tensor, 0, group)),
            _waited(functional.reduce_scatter_tensor(tensor, "sum", 0, group)),
            # The source is a rank of the group here.
            _waited(functional.broadcast(tensor, 1, group)),
        ]

    def expected_on_subgroup(rank: int) -> object:
        if rank not in (1, 3):
            return None
        inputs = [sample(VECTOR, rank=1), sample(VECTOR, rank=3)]
        total = reduced("SUM", inputs)
        return [total, torch.cat(inputs), total.chunk(2)[rank // 2], inputs[1]]

    yield Case("functional-subgroup", 4, on_subgroup, expected_on_subgroup)

    def on_mesh(rank: int) -> object:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        tensor = sample(VECTOR, rank=rank)
        return [
            _waited(functional.all_reduce(tensor, "sum", mesh["data"])),
            _waited(functional.all_gather_tensor(tensor, 0, (mesh, 1))),
        ]

    def expected_on_mesh(rank: int) -> object:
        row, column = divmod(rank, 2)
        return [
            reduced("SUM", [sample(VECTOR, rank=column), sample(VECTOR, rank=column + 2)]),
            torch.cat([sample(VECTOR, rank=2 * row), sample(VECTOR, rank=2 * row + 1)]),
        ]

    yield Case("functional-mesh", 4, on_mesh, expected_on_mesh)


def _used_without_wait(rank: int) -> torch.Tensor:
    # The tensor that comes back waits when something is computed from it.
    return functional.all_reduce(sample(VECTOR, rank=rank), "sum", dist.group.WORLD) * 2


def _several(rank: int) -> object:
    first = functional.all_reduce(sample(VECTOR, rank=rank), "sum", dist.group.WORLD)
    second = functional.all_reduce(sample(SHORT, rank=rank), "sum", dist.group.WORLD)
    later = _waited(second)
    return [_waited(first), later]


def _in_place(rank: int) -> object:
    tensor, announced = sample(VECTOR, rank=rank), sample(VECTOR, rank=rank)
    name = dist.group.WORLD.group_name
    operations = torch.ops._c10d_functional
    operations.wait_tensor(operations.all_reduce_(tensor, "sum", name))
    operations.wait_tensor(operations.broadcast_(announced, 1, name))
    return [tensor, announced]


def _coalesced() -> Iterator[Case]:
    """Calls inside the manager go out as one, when the block ends."""
    blocks: dict[str, tuple[Callable[[int, bool], list[torch.Tensor]], Callable[[int], list[torch.Tensor]]]] = {
        **{
            name: (
                partial(_all_reduces, reduction),
                lambda rank, reduction=reduction: [_total(VECTOR, reduction), _total(SHORT, reduction)],
            )
            for name, reduction in (("all_reduce", "SUM"), ("all_reduce-MAX", "MAX"))
        },
        "all_gather_single": (_all_gathers, lambda rank: [torch.cat(_inputs(MATRIX)), torch.cat(_inputs(SHORT))]),
        "reduce_scatter_single": (
            _reduce_scatters,
            lambda rank: [_total(MATRIX).chunk(WORLD_SIZE)[rank], _total(SHORT).chunk(WORLD_SIZE)[rank]],
        ),
        # Not among the calls that can be joined: issued at once.
        "broadcast": (_broadcasts, lambda rank: [sample(VECTOR, rank=1)]),
        "nothing": (lambda rank, is_async: [], lambda rank: []),
    }
    for name, (issue, expected) in blocks.items():
        for is_async in (False, True):

            def program(rank: int, issue=issue, is_async: bool = is_async) -> list[torch.Tensor]:
                with _coalescing_manager(async_ops=is_async) as manager:
                    tensors = issue(rank, is_async)
                manager.wait()
                return tensors

            mode = "async" if is_async else "sync"
            yield Case(f"coalescing_manager-{name}-{mode}", WORLD_SIZE, program, expected)

    def on_subgroup(rank: int) -> object:
        group = dist.new_group([1, 3])
        tensors = [sample(VECTOR, rank=rank), sample(SHORT, rank=rank)]
        if rank not in (1, 3):
            return None
        with _coalescing_manager(group=group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        return tensors

    def expected_on_subgroup(rank: int) -> object:
        if rank not in (1, 3):
            return None
        return [reduced("SUM", [sample(setting, rank=1), sample(setting, rank=3)]) for setting in (VECTOR, SHORT)]

    yield Case("coalescing_manager-subgroup", 4, on_subgroup, expected_on_subgroup)

    def on_a_device(rank: int) -> torch.Tensor:
        # The older way: the backend joins what it is given, of whatever kind.
        tensor = sample(VECTOR, rank=rank)
        with _coalescing_manager(device=torch.device("cpu")):
            dist.broadcast(tensor, 1)
        return tensor

    yield Case(
        "coalescing_manager-device",
        WORLD_SIZE,
        on_a_device,
        lambda rank: sample(VECTOR, rank=1),
        gloo_refuses="Backend gloo does not implement startCoalescing",
    )


def _all_reduces(reduction: str, rank: int, is_async: bool) -> list[torch.Tensor]:
    tensors = [sample(VECTOR, rank=rank), sample(SHORT, rank=rank)]
    for tensor in tensors:
        dist.all_reduce(tensor, getattr(dist.ReduceOp, reduction), async_op=is_async)
    return tensors


def _all_gathers(rank: int, is_async: bool) -> list[torch.Tensor]:
    outputs = [torch.empty(8, 2), torch.empty(4)]
    for output, setting in zip(outputs, (MATRIX, SHORT), strict=True):
        all_gather_single(output, sample(setting, rank=rank), async_op=is_async)
    return outputs


def _reduce_scatters(rank: int, is_async: bool) -> list[torch.Tensor]:
    outputs = [torch.empty(2, 2), torch.empty(1)]
    for output, setting in zip(outputs, (MATRIX, SHORT), strict=True):
        reduce_scatter_single(output, sample(setting, rank=rank), async_op=is_async)
    return outputs


def _broadcasts(rank: int, is_async: bool) -> list[torch.Tensor]:
    tensor = sample(VECTOR, rank=rank)
    dist.broadcast(tensor, 1)
    return [tensor]
