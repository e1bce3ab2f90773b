"""Wrong arguments: roots and peers, lists on the wrong rank, groups and how they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from inspect import getsource
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.semantics.error_case import ErrorCase, zeros
from tests.semantics.reductions import reduce_scatter_single

_C10D_SOURCE = getsource(distributed_c10d)
"""Tells what this torch checks in Python, and in which words."""


def cases() -> Iterator[ErrorCase]:
    yield from _roots()
    yield from _sides()
    yield from _point_to_point()
    yield from _objects()
    yield from _coalesced()
    yield from _groups()
    yield from _others()


def _roots() -> Iterator[ErrorCase]:
    for name, options in (("broadcast", dist.BroadcastOptions), ("reduce", dist.ReduceOptions)):
        for number in (-1, 1):
            yield ErrorCase(
                f"{name}-root-tensor-{number}",
                lambda rank, name=name, options=options, number=number: _with_root_tensor(name, options(), number),
                RuntimeError,
                f"ProcessGroupGloo::{name}: invalid root tensor: {number}",
            )
    calls: dict[str, Callable[..., object]] = {
        "broadcast": lambda **root: dist.broadcast(zeros(2), **_named(root, "src")),
        "reduce": lambda **root: dist.reduce(zeros(2), **_named(root, "dst")),
        "gather": lambda **root: dist.gather(zeros(2), **_named(root, "dst")),
        "scatter": lambda **root: dist.scatter(zeros(2), **_named(root, "src")),
    }
    for name, call in calls.items():
        for root in (5, -1):
            for kind in ("root", "group_root"):
                yield ErrorCase(
                    f"{name}-{kind.replace('_', '-')}-{root}",
                    lambda rank, call=call, root=root, kind=kind: call(**{kind: root}),
                    RuntimeError,
                    f"ProcessGroupGloo::{name}: invalid root rank: {root}",
                )
        yield ErrorCase(
            f"{name}-root-twice",
            lambda rank, call=call: call(root=0, group_root=0),
            ValueError,
            "Can't specify both group_rank and global_rank",
        )
        yield ErrorCase(
            f"{name}-root-outside-subgroup",
            lambda rank, call=call: call(root=1, group=dist.new_group([0, 2])),
            ValueError,
            "Global rank 1 is not part of group",
            world_size=3,
            ranks=(0, 2),
        )
    for name in ("broadcast", "reduce"):
        yield ErrorCase(
            f"{name}-no-root",
            lambda rank, call=calls[name]: call(),
            ValueError,
            "Must specify global_rank or group_rank",
        )


def _named(root: dict[str, object], side: str) -> dict[str, object]:
    """`root` and `group_root`, as the parameters of a call that names its root `src` or `dst`."""
    return {name.replace("root", side): value for name, value in root.items()}


def _sides() -> Iterator[ErrorCase]:
    """Lists that are there on the wrong rank, or missing on the right one."""
    calls: tuple[tuple[str, str, str, Callable[[object], object]], ...] = (
        ("gather", "gather", "destination", lambda given: dist.gather(zeros(2), given, 0)),
        ("scatter", "scatter", "source", lambda given: dist.scatter(zeros(2), given, 0)),
        ("gather_object", "gather", "destination", lambda given: dist.gather_object("mine", given)),
    )
    for name, kind, side, call in calls:
        yield ErrorCase(
            f"{name}-no-list-on-{side}",
            lambda rank, call=call: call(None),
            ValueError,
            f"Argument ``{kind}_list`` must be specified on {side} rank.",
            ranks=(0,),
        )
        yield ErrorCase(
            f"{name}-list-elsewhere",
            lambda rank, call=call: call([zeros(2), zeros(2)]),
            ValueError,
            f"Argument ``{kind}_list`` must NOT be specified on non-{side} ranks.",
            ranks=(1,),
        )


def _point_to_point() -> Iterator[ErrorCase]:
    itself = "should not be the same as the rank of the current process."
    calls: dict[str, tuple[Callable[[int], object], type[Exception], str]] = {
        "send-to-itself": (lambda rank: dist.send(zeros(2), rank), ValueError, f"destination rank {itself}"),
        "isend-to-itself": (lambda rank: dist.isend(zeros(2), rank), RuntimeError, "Pair is not connected"),
        "irecv-from-itself": (lambda rank: dist.irecv(zeros(2), rank), RuntimeError, "Pair is not connected"),
        "send-tag-negative": (
            lambda rank: dist.send(zeros(2), 1 - rank, tag=-1),
            RuntimeError,
            "Tag must be nonnegative",
        ),
        "recv-tag-negative": (
            lambda rank: dist.recv(zeros(2), 1 - rank, tag=-1),
            RuntimeError,
            "Tag must be nonnegative",
        ),
        "recv-any-tag-negative": (lambda rank: dist.recv(zeros(2), tag=-1), RuntimeError, "Tag must be nonnegative"),
        "send-no-destination": (
            lambda rank: dist.send(zeros(2)),
            ValueError,
            "Must specify global_rank or group_rank",
        ),
        "send-destination-twice": (
            lambda rank: dist.send(zeros(2), 1 - rank, group_dst=1 - rank),
            ValueError,
            "Can't specify both group_rank and global_rank",
        ),
        "batch_isend_irecv-empty": (lambda rank: dist.batch_isend_irecv([]), IndexError, "list index out of range"),
        "batch_isend_irecv-no-operation": (
            lambda rank: dist.batch_isend_irecv([zeros(2)]),
            ValueError,
            "Invalid ``p2p_op_list``. Each op is expected to to be of type ``torch.distributed.P2POp``.",
        ),
        "P2POp-collective": (
            lambda rank: dist.P2POp(dist.all_reduce, zeros(2), 0),
            ValueError,
            "Expected ``op`` to be of type ``torch.distributed.isend`` or ``torch.distributed.irecv``.",
        ),
        "P2POp-no-peer": (
            lambda rank: dist.P2POp(dist.isend, zeros(2)),
            ValueError,
            "Must specify global_rank or group_rank",
        ),
    }
    for name, (call, error, message) in calls.items():
        yield ErrorCase(name, call, error, message)
    yield ErrorCase(
        "send-outside-subgroup",
        lambda rank: dist.send(zeros(2), 1, group=dist.new_group([0, 2])),
        ValueError,
        "Global rank 1 is not part of group",
        world_size=3,
        ranks=(0, 2),
    )
    yield ErrorCase(
        "batch_isend_irecv-two-groups",
        lambda rank: dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, zeros(2), 1 - rank),
                dist.P2POp(dist.irecv, zeros(2), 1 - rank, group=dist.new_group([0, 1])),
            ]
        ),
        ValueError,
        "All ops need to use the same group.",
    )


def _objects() -> Iterator[ErrorCase]:
    yield ErrorCase(
        "scatter_object_list-no-output",
        lambda rank: dist.scatter_object_list([], ["a", "b"]),
        ValueError,
        "Expected argument scatter_object_output_list to be a list of size at least 1.",
    )
    yield ErrorCase(
        "scatter_object_list-no-input",
        lambda rank: dist.scatter_object_list([None], None),
        ValueError,
        "source rank must provide non-None scatter_object_input_list",
        ranks=(0,),
    )
    yield ErrorCase(
        "send_object_list-to-itself",
        lambda rank: dist.send_object_list(["mine"], rank),
        ValueError,
        "destination rank should not be the same as the rank of the current process.",
    )
    yield ErrorCase(
        "recv_object_list-from-itself",
        lambda rank: dist.recv_object_list([None], rank),
        ValueError,
        "source rank should not be the same as the rank of the current process.",
    )
    yield ErrorCase(
        "broadcast_object_list-root-out-of-range",
        lambda rank: dist.broadcast_object_list([None], src=5),
        RuntimeError,
        "ProcessGroupGloo::broadcast: invalid root rank: 5",
    )


def _with_root_tensor(name: str, options: Any, number: int) -> object:
    options.rootTensor = number
    return getattr(dist.group.WORLD, name)([zeros(2)], options)


def _coalesced() -> Iterator[ErrorCase]:
    def of_two_kinds(rank: int) -> None:
        with _coalescing_manager():
            dist.all_reduce(zeros(2))
            reduce_scatter_single(zeros(2), zeros(4))

    def of_two_dtypes(rank: int) -> None:
        with _coalescing_manager():
            dist.all_reduce(zeros(2))
            dist.all_reduce(zeros(2, dtype=torch.float64))

    def waited_inside(rank: int) -> None:
        with _coalescing_manager(async_ops=True) as manager:
            work = dist.all_reduce(zeros(2), async_op=True)
        manager.wait()
        work.wait()

    if "but got mixed types" in _C10D_SOURCE:
        yield ErrorCase(
            "coalescing_manager-two-kinds",
            of_two_kinds,
            RuntimeError,
            "Coalescing manager requires all collectives to be the same type, but got mixed types:",
        )
    yield ErrorCase(
        "coalescing_manager-two-dtypes",
        of_two_dtypes,
        RuntimeError,
        "ProcessGroupGloo::allreduce_coalesced: tensors must all have the same type",
    )
    yield ErrorCase(
        "coalescing_manager-work-inside",
        waited_inside,
        ValueError,
        "Illegal to call wait on IllegalWork object",
    )
    yield ErrorCase(
        "functional-all_gather_coalesced-unequal-lists",
        lambda rank: dist.group.WORLD.allgather_into_tensor_coalesced([zeros(4)], [zeros(2), zeros(2)]),
        RuntimeError,
        "Check failed: outputs.size() == inputs.size() (1 vs. 2)",
    )
    yield ErrorCase(
        "reduce_scatter_tensor_coalesced-unequal-lists",
        lambda rank: dist.group.WORLD.reduce_scatter_tensor_coalesced([zeros(2)], [zeros(4), zeros(4)]),
        RuntimeError,
        "requires input/output tensor lists to have the same length",
    )


def _out_of_range(text: str) -> str:
    older = "The new group's rank should be within the world_size set by init_process_group"
    return text if "Rank {rank} is out of range." in _C10D_SOURCE else older


def _groups() -> Iterator[ErrorCase]:
    calls: dict[str, tuple[Callable[[int], object], type[Exception], str]] = {
        "new_group-unknown-rank": (
            lambda rank: dist.new_group([0, 9]),
            ValueError,
            _out_of_range("Rank 9 is out of range. Valid ranks are 0 to 1 (world_size=2)"),
        ),
        "new_group-negative-rank": (
            lambda rank: dist.new_group([-1, 0]),
            ValueError,
            _out_of_range("Rank -1 is out of range."),
        ),
        "new_group-too-many": (
            lambda rank: dist.new_group([0, 1, 2]),
            ValueError,
            "the new group's world size should be less or equal to the world size set by init_process_group",
        ),
        "new_group-timeout-number": (
            lambda rank: dist.new_group([0], timeout=5),
            TypeError,
            "Expected timeout argument to be of type datetime.timedelta, got 5",
        ),
        "new_subgroups-size-zero": (
            lambda rank: dist.new_subgroups(0),
            ValueError,
            "The arg 'group_size' (0) must be positive",
        ),
        "new_subgroups-too-large": (
            lambda rank: dist.new_subgroups(3),
            ValueError,
            "The arg 'group_size' (3) must not exceed the world size (2)",
        ),
        "new_subgroups_by_enumeration-nothing": (
            lambda rank: dist.new_subgroups_by_enumeration([]),
            ValueError,
            "The arg 'ranks_per_subgroup_list' cannot be empty",
        ),
        "new_subgroups_by_enumeration-overlap": (
            lambda rank: dist.new_subgroups_by_enumeration([[0, 1], [1]]),
            ValueError,
            "Rank 1 has appeared in both subgroup [0, 1] and [1]",
        ),
        "split_group-nothing": (lambda rank: dist.split_group(), ValueError, "split_ranks cannot be None or empty"),
        "init_device_mesh-too-large": (
            lambda rank: init_device_mesh("cpu", (2, 2)),
            RuntimeError,
            "Mesh should not be bigger than default world size 2, but found 4 ranks!",
        ),
        "init_device_mesh-names-missing": (
            lambda rank: init_device_mesh("cpu", (2, 1), mesh_dim_names=("one",)),
            RuntimeError,
            "mesh_shape and mesh_dim_names should have same length!",
        ),
        "init_process_group-again": (
            lambda rank: dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1),
            ValueError,
            "trying to initialize the default process group twice!",
        ),
        "all_reduce-group-number": (
            lambda rank: dist.all_reduce(zeros(2), group=7),
            ValueError,
            "Process group 7 is not initialized in the world group map.",
        ),
        "destroy_process_group-unknown": (
            lambda rank: dist.destroy_process_group(7),
            ValueError,
            "Invalid process group specified",
        ),
        "destroy_process_group-twice": (
            lambda rank: _after_destroy(dist.destroy_process_group),
            ValueError,
            "Invalid process group specified",
        ),
        "get_rank-destroyed-group": (
            lambda rank: _after_destroy(dist.get_rank),
            ValueError,
            "is not registered, please create group with",
        ),
    }
    if "ranks list must not contain duplicate entries" in _C10D_SOURCE:
        calls["new_group-duplicate"] = (
            lambda rank: dist.new_group([0, 0]),
            ValueError,
            "ranks list must not contain duplicate entries, got [0, 0]",
        )
    if (needs_device := "No device associated with the default pg") in _C10D_SOURCE:
        calls["split_group-no-device"] = (
            lambda rank: dist.split_group(split_ranks=[[0], [1]]),
            RuntimeError,
            f"{needs_device}, not safe to split any process groups",
        )
    for name, (call, error, message) in calls.items():
        yield ErrorCase(name, call, error, message)
    yield ErrorCase(
        "new_subgroups-indivisible",
        lambda rank: dist.new_subgroups(2),
        ValueError,
        "The world size (3) must be divisible by 'group_size=2'",
        world_size=3,
    )
    yield ErrorCase(
        "get_group_rank-non-member",
        lambda rank: dist.get_group_rank(dist.new_group([0]), 1),
        ValueError,
        "Global rank 1 is not part of group",
    )
    by_non_member: dict[str, Callable[[object], object]] = {
        "send": lambda group: dist.send(zeros(2), 0, group=group),
        "get_backend": dist.get_backend,
    }
    for name, ask in by_non_member.items():
        yield ErrorCase(
            f"{name}-by-non-member",
            # Rank 0 is alone in the group, so nobody waits for it there.
            lambda rank, ask=ask: ask(dist.new_group([0], use_local_synchronization=False)),
            ValueError,
            "Invalid process group specified",
            ranks=(1,),
        )


def _after_destroy(call: Callable[[object], object]) -> None:
    group = dist.new_group([0, 1])
    dist.barrier(group)  # real gloo may still be connecting on the other rank
    dist.destroy_process_group(group)
    call(group)


def _others() -> Iterator[ErrorCase]:
    yield ErrorCase(
        "monitored_barrier-timeout-number",
        lambda rank: dist.monitored_barrier(timeout=5),
        TypeError,
        "Expected timeout argument to be of type datetime.timedelta, got 5",
    )
    yield ErrorCase(
        "monitored_barrier-rank-missing",
        lambda rank: dist.monitored_barrier(timeout=timedelta(milliseconds=100)),
        RuntimeError,
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 100 ms",
        ranks=(0,),
        loses_connections=True,
    )
    yield ErrorCase(
        "monitored_barrier-ranks-missing",
        lambda rank: dist.monitored_barrier(timeout=timedelta(milliseconds=100), wait_all_ranks=True),
        RuntimeError,
        "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 100 ms",
        world_size=3,
        ranks=(0,),
        loses_connections=True,
    )
    yield ErrorCase(
        "nn-_all_gather_base-backward",
        lambda rank: nn._all_gather_base(zeros(4), zeros(2).requires_grad_()).sum().backward(),
        RuntimeError,
        "Backend not supported!",
    )
