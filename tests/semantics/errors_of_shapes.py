"""Wrong arguments: lists of the wrong length, shapes, splits, layouts and devices that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.semantics.error_case import ErrorCase, zeros
from tests.semantics.movement import all_gather_single
from tests.semantics.reductions import reduce_scatter_single
from tests.semantics.sweep import dtype_name


def cases() -> Iterator[ErrorCase]:
    yield from _lists()
    yield from _shapes()
    yield from _splits()
    yield from _layouts()
    yield from _devices()


def _lists() -> Iterator[ErrorCase]:
    """Lists of the wrong length."""
    for length in (0, 1, 3):
        yield ErrorCase(
            f"all_gather-list-of-{length}",
            lambda rank, length=length: dist.all_gather([zeros(2) for _ in range(length)], zeros(2)),
            RuntimeError,
            f"ProcessGroupGloo::allgather: invalid output tensor list at index 0 (expected length 2, got {length})",
        )
        yield ErrorCase(
            f"reduce_scatter-list-of-{length}",
            lambda rank, length=length: dist.reduce_scatter(zeros(2), [zeros(2) for _ in range(length)]),
            RuntimeError,
            "invalid input tensor list size, must be world size",
        )
    for length in (1, 3):
        for operation, side in (("gather", "output"), ("scatter", "input")):
            yield ErrorCase(
                f"{operation}-list-of-{length}",
                lambda rank, length=length, name=operation: getattr(dist, name)(zeros(2), [zeros(2)] * length),
                RuntimeError,
                f"ProcessGroupGloo::{operation}: Incorrect {side} list size {length}. "
                f"{side.capitalize()} list size should be 2, same as size of the process group.",
                ranks=(0,),
            )
        yield ErrorCase(
            f"all_to_all-input-list-of-{length}",
            lambda rank, length=length: dist.all_to_all([zeros(2), zeros(2)], [zeros(2) for _ in range(length)]),
            RuntimeError,
            f"ProcessGroupGloo::alltoall: input tensor list size {length} does not match world size 2",
        )
        yield ErrorCase(
            f"all_to_all-output-list-of-{length}",
            lambda rank, length=length: dist.all_to_all([zeros(2) for _ in range(length)], [zeros(2), zeros(2)]),
            RuntimeError,
            f"ProcessGroupGloo::alltoall: output tensor list size {length} does not match world size 2",
        )
    yield ErrorCase(
        "all_gather_coalesced-one-list",
        lambda rank: dist.all_gather_coalesced([[zeros(2)]], [zeros(2)]),
        RuntimeError,
        "ProcessGroupGloo::allgather_coalesced: output lists should be equal to world size",
    )
    yield ErrorCase(
        "all_gather_coalesced-lists-too-long",
        lambda rank: dist.all_gather_coalesced([[zeros(2), zeros(2)]] * 2, [zeros(2)]),
        RuntimeError,
        "ProcessGroupGloo::allgather_coalesced: invalid output size: (expected length 1, got 2)",
    )
    one, other, wide, lists = zeros(1), zeros(1, dtype=torch.float64), zeros(2), "tensor lists to have the same length"
    sparse = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), one, (1,), check_invariants=True)
    several: dict[str, tuple[Callable[[Any], object], str]] = {
        "allreduce-two-dtypes": (
            lambda group: group.allreduce([one, other]),
            "allreduce: invalid tensor type at index 0",
        ),
        "allreduce-two-sizes": (
            lambda group: group.allreduce([one, wide]),
            "allreduce: invalid tensor size at index 0 (expected (1), got (2))",
        ),
        "allreduce-two-layouts": (
            lambda group: group.allreduce([one, sparse]),
            "allreduce: invalid tensor layout at index 1 (expected Strided, got Sparse)",
        ),
        "broadcast-two-sizes": (
            lambda group: group.broadcast([one, wide]),
            "broadcast: invalid tensor size at index 0 (expected (1), got (2))",
        ),
        "reduce-two": (
            lambda group: group.reduce([one, one], dist.ReduceOptions()),
            "reduce: requires a single-element tensor list",
        ),
        "allgather-no-list": (lambda group: group.allgather([], [one]), f"allgather: requires input/output {lists}"),
        "allgather-two-inputs": (
            lambda group: group.allgather([[one] * 4, [one] * 2], [one, one]),
            "allgather: invalid output tensor list at index 1 (expected length 4, got 2)",
        ),
        "gather-two-inputs": (
            lambda group: group.gather([[one] * 2], [one, one], dist.GatherOptions()),
            "gather: requires a single-element input tensor list",
        ),
        "scatter-two-outputs": (
            lambda group: group.scatter([one, one], [[one] * 2], dist.ScatterOptions()),
            "scatter: requires a single-element output tensor list",
        ),
    }
    for name, (ask, problem) in several.items():
        yield ErrorCase(
            f"several-{name}",
            lambda rank, ask=ask: ask(dist.group.WORLD),
            RuntimeError,
            f"ProcessGroupGloo::{problem}",
        )
    for name, text in (("gather", "output"), ("scatter", "input")):
        with_list = dist.GatherOptions() if name == "gather" else dist.ScatterOptions()
        yield ErrorCase(
            f"{name}-no-list-on-the-root",
            lambda rank, name=name, options=with_list: _with_lists(name, [], options),
            RuntimeError,
            f"ProcessGroupGloo::{name}: requires a single-element {text} list containing a list with 2 tensors.",
            ranks=(0,),
        )
        yield ErrorCase(
            f"{name}-list-off-the-root",
            lambda rank, name=name, options=with_list: _with_lists(name, [[zeros(1)] * 2], options),
            RuntimeError,
            f"ProcessGroupGloo::{name}: requires empty {text} on non-root",
            ranks=(1,),
        )
    yield ErrorCase(
        "send-two",
        lambda rank: dist.group.WORLD.send([one, one], 1 - rank, 0),
        RuntimeError,
        "ProcessGroupGloo::send takes a single tensor",
    )
    nothing: dict[str, tuple[Callable[[int], object], str]] = {
        "allreduce": (
            lambda rank: dist.group.WORLD.allreduce([], dist.AllreduceOptions()),
            "c10d::allreduce_",
        ),
        "reduce_scatter": (
            lambda rank: dist.group.WORLD.reduce_scatter([], [], dist.ReduceScatterOptions()),
            "c10d::reduce_scatter_",
        ),
        "all_to_all": (lambda rank: dist.all_to_all([], []), "c10d::alltoall_"),
        "all_reduce_coalesced": (lambda rank: dist.all_reduce_coalesced([]), "c10d::allreduce_coalesced_"),
        "all_gather_coalesced": (lambda rank: dist.all_gather_coalesced([], []), "c10d::allgather_coalesced_"),
    }
    for name, (call, schema) in nothing.items():
        yield ErrorCase(
            f"{name}-empty-list",
            call,
            NotImplementedError,
            "There were no tensor arguments to this function (e.g., you passed an empty list of Tensors), but no "
            f"fallback function is registered for schema {schema}.",
        )


def _with_lists(name: str, lists: Any, options: Any) -> object:
    lists_and_own = (lists, [zeros(1)]) if name == "gather" else ([zeros(1)], lists)
    return getattr(dist.group.WORLD, name)(*lists_and_own, options)


def _shapes() -> Iterator[ErrorCase]:
    """Outputs that do not fit the input."""
    allgather = "ProcessGroupGloo::allgather: invalid tensor size at index"
    calls: dict[str, tuple[Callable[[int], object], str]] = {
        # torch's documentation promises uneven shapes; NCCL keeps the promise.
        "all_gather-uneven": (
            lambda rank: dist.all_gather([zeros(2), zeros(3)], zeros(2)),
            f"{allgather} 1 (expected (2), got (3))",
        ),
        "all_gather-reshaped": (
            lambda rank: dist.all_gather([zeros(2, 3), zeros(2, 3)], zeros(6)),
            f"{allgather} 0 (expected (6), got (2, 3))",
        ),
        "all_gather_single-too-short": (
            lambda rank: all_gather_single(zeros(5), zeros(3)),
            f"{allgather} 1 (expected (3), got (2))",
        ),
        "all_gather_single-too-long": (
            lambda rank: all_gather_single(zeros(8), zeros(3)),
            f"{allgather} 0 (expected (3), got (4))",
        ),
        # Documented, and possible on NCCL: the inputs stacked along a new dimension.
        "all_gather_single-stacked": (
            lambda rank: all_gather_single(zeros(2, 3), zeros(3)),
            f"{allgather} 0 (expected (3), got (1, 3))",
        ),
        "all_gather_single-flat": (
            lambda rank: all_gather_single(zeros(12), zeros(2, 3)),
            f"{allgather} 0 (expected (2, 3), got (6))",
        ),
        "all_gather_single-scalar": (
            lambda rank: all_gather_single(zeros(2), zeros()),
            f"{allgather} 0 (expected (), got (1))",
        ),
        "all_gather_coalesced-other-shape": (
            lambda rank: dist.all_gather_coalesced([[zeros(3)], [zeros(2)]], [zeros(2)]),
            "ProcessGroupGloo::allgather_coalesced: invalid size of output tensor at index 0 "
            "(expected length (2), got (3))",
        ),
        "all_to_all-outputs-uneven": (
            lambda rank: dist.all_to_all([zeros(2), zeros(3)], [zeros(2), zeros(2)]),
            "ProcessGroupGloo::alltoall: invalid tensor size at index 1 (expected (2), got (3))",
        ),
        "all_to_all-inputs-uneven": (
            lambda rank: dist.all_to_all([zeros(2), zeros(2)], [zeros(2), zeros(3)]),
            "ProcessGroupGloo::alltoall: invalid tensor size at index 1 (expected (2), got (3))",
        ),
        "all_to_all_single-other-size": (
            lambda rank: dist.all_to_all_single(zeros(6), zeros(4)),
            "in->size == out->size",
        ),
        "reduce_scatter-own-entry-of-other-shape": (
            lambda rank: dist.reduce_scatter(zeros(3), [zeros(2), zeros(2)]),
            "Check failed: outputs[0].sizes().vec() == inputs[0][i].sizes().vec()",
        ),
        "reduce_scatter_single-too-long": (
            lambda rank: reduce_scatter_single(zeros(2), zeros(5)),
            "Check failed: outputShape[0] * worldSize == inputShape[0] (4 vs. 5)",
        ),
        "reduce_scatter_single-stacked": (
            lambda rank: reduce_scatter_single(zeros(3), zeros(2, 3)),
            "Check failed: outputShape[0] * worldSize == inputShape[0] (6 vs. 2)",
        ),
        "reduce_scatter_single-other-columns": (
            lambda rank: reduce_scatter_single(zeros(1, 2), zeros(2, 3)),
            "Check failed: outputShape[i] == inputShape[i] (2 vs. 3)",
        ),
        "functional-all_gather_tensor-scalar": (
            lambda rank: functional.wait_tensor(functional.all_gather_tensor(zeros(), 0, dist.group.WORLD)),
            "ProcessGroupGloo::allgather_coalesced: invalid size of output tensor at index 0 "
            "(expected length (), got (1))",
        ),
    }
    for name, (call, message) in calls.items():
        yield ErrorCase(name, call, RuntimeError, message)
    for operation in ("gather", "scatter"):
        yield ErrorCase(
            f"{operation}-other-shape",
            lambda rank, name=operation: getattr(dist, name)(zeros(2), [zeros(3), zeros(3)]),
            RuntimeError,
            f"ProcessGroupGloo::{operation}: invalid tensor size at index 0 (expected (2), got (3))",
            ranks=(0,),
        )
    yield ErrorCase(
        "functional-reduce_scatter_tensor-indivisible",
        lambda rank: functional.reduce_scatter_tensor(zeros(3), "sum", 0, dist.group.WORLD),
        AssertionError,
        "input dimension 0 (3 must be a multiple of group_size 2)",
    )


def _splits() -> Iterator[ErrorCase]:
    for name, outputs, inputs, message in (
        ("input-sum", [2, 2], [1, 2], "Split sizes doesn't match total dim 0 size"),
        ("output-sum", [2, 3], [2, 2], "Split sizes doesn't match total dim 0 size"),
        ("input-length", [2, 2], [1, 2, 1], "Number of tensor splits not equal to group size"),
        ("output-length", [4], [2, 2], "Number of tensor splits not equal to group size"),
    ):
        yield ErrorCase(
            f"all_to_all_single-{name}",
            lambda rank, outputs=outputs, inputs=inputs: dist.all_to_all_single(zeros(4), zeros(4), outputs, inputs),
            RuntimeError,
            message,
        )
    yield ErrorCase(
        "all_to_all_single-indivisible-beside-splits",
        lambda rank: dist.all_to_all_single(zeros(3), zeros(3), None, [1, 2]),
        RuntimeError,
        "Tensor's dim 0 does not divide equally across group size",
    )


def _layouts() -> Iterator[ErrorCase]:
    yield ErrorCase(
        "all_to_all_single-input-not-contiguous",
        lambda rank: dist.all_to_all_single(zeros(2, 2), zeros(2, 2).t()),
        ValueError,
        "Tensors must be contiguous",
    )
    for name, call in (
        ("send", lambda rank: dist.send(zeros(2, 3).t(), 1 - rank)),
        ("recv", lambda rank: dist.recv(zeros(2, 3).t(), 1 - rank)),
        ("recv-any", lambda rank: dist.recv(zeros(2, 3).t())),
    ):
        yield ErrorCase(f"{name}-not-contiguous", call, RuntimeError, "input tensor has to be contiguous")
    sparse = zeros(2).to_sparse()
    for name in ("AVG", "MAX", "PRODUCT"):
        yield ErrorCase(
            f"all_reduce-sparse-{name}",
            lambda rank, name=name: dist.all_reduce(zeros(2).to_sparse(), getattr(dist.ReduceOp, name)),
            RuntimeError,
            "ProcessGroupGloo::allreduce: unsupported reduction operation "
            "(allreduce of sparse tensors only works with ReduceOp.SUM)",
        )
    yield ErrorCase(
        "all_reduce-sparse-int16",
        lambda rank: dist.all_reduce(zeros(2, dtype=torch.int16).to_sparse()),
        RuntimeError,
        "Invalid scalar type",
    )
    for dtype, kind in ((torch.float16, "Half"), (torch.bool, "Bool")):
        yield ErrorCase(
            f"all_reduce-sparse-{dtype_name(dtype)}",
            lambda rank, dtype=dtype: dist.all_reduce(torch.ones(2).to(dtype).to_sparse()),
            NotImplementedError,
            f"\"cadd_sparse\" not implemented for '{kind}'",
        )
    calls: dict[str, tuple[Callable[[int], object], str]] = {
        "broadcast": (lambda rank: dist.broadcast(sparse, 0), "broadcast_"),
        "reduce": (lambda rank: dist.reduce(sparse, 0), "reduce_"),
        "all_gather": (lambda rank: dist.all_gather([sparse, sparse], sparse), "allgather_"),
        "all_gather_single": (lambda rank: all_gather_single(sparse, sparse), "_allgather_base_"),
        "all_gather_coalesced": (
            lambda rank: dist.all_gather_coalesced([[sparse], [sparse]], [sparse]),
            "allgather_coalesced_",
        ),
        "all_reduce_coalesced": (lambda rank: dist.all_reduce_coalesced([sparse]), "allreduce_coalesced_"),
        "gather": (lambda rank: dist.gather(sparse, [sparse, sparse] if rank == 0 else None), "gather_"),
        "scatter": (lambda rank: dist.scatter(sparse, [sparse, sparse] if rank == 0 else None), "scatter_"),
        "reduce_scatter": (lambda rank: dist.reduce_scatter(sparse, [sparse, sparse]), "reduce_scatter_"),
        "reduce_scatter_single": (lambda rank: reduce_scatter_single(sparse, sparse), "_reduce_scatter_base_"),
        "all_to_all": (lambda rank: dist.all_to_all([sparse, sparse], [sparse, sparse]), "alltoall_"),
        "all_to_all_single": (lambda rank: dist.all_to_all_single(sparse, sparse), "alltoall_base_"),
        "send": (lambda rank: dist.send(sparse, 1 - rank), "send"),
        "recv": (lambda rank: dist.recv(sparse, 1 - rank), "recv_"),
        "recv-any": (lambda rank: dist.recv(sparse), "recv_any_source_"),
    }
    for name, (call, operator) in calls.items():
        yield ErrorCase(
            f"{name}-sparse",
            call,
            NotImplementedError,
            f"Could not run 'c10d::{operator}' with arguments from the 'SparseCPU' backend.",
        )


def _devices() -> Iterator[ErrorCase]:
    calls: tuple[tuple[str, str, Callable[[list[torch.Tensor]], object], tuple[int, ...]], ...] = (
        ("all_gather-outputs", "allgather", lambda given: dist.all_gather(given, zeros(2)), ()),
        ("gather-outputs", "gather", lambda given: dist.gather(zeros(2), given), (0,)),
        ("scatter-inputs", "scatter", lambda given: dist.scatter(zeros(2), given), (0,)),
    )
    for name, method, call, ranks in calls:
        yield ErrorCase(
            f"{name}-on-other-device",
            lambda rank, call=call: call([zeros(2), torch.zeros(2, device="meta")]),
            RuntimeError,
            f"ProcessGroupGloo::{method}: invalid tensor type at index 1 "
            "(expected TensorOptions(dtype=float, device=cpu, ",
            ranks=ranks,
        )
