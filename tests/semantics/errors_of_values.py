"""Wrong arguments: dtypes, reductions, and things that are no tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.semantics.error_case import ErrorCase, zeros
from tests.semantics.movement import all_gather_single
from tests.semantics.reductions import COMPLEX, FLOATING, INTEGRAL, reduce_scatter_single
from tests.semantics.sweep import PREMUL_FACTOR, dtype_name

REFUSED_DTYPES = (torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn)


def cases() -> Iterator[ErrorCase]:
    yield from _dtypes()
    yield from _reductions()
    yield from _mixed_dtypes()
    yield from _kinds()


def _dtypes() -> Iterator[ErrorCase]:
    # float8 stands for its whole family.
    for dtype in REFUSED_DTYPES:
        yield ErrorCase(
            f"all_reduce-{dtype_name(dtype)}",
            lambda rank, dtype=dtype: dist.all_reduce(zeros(2, dtype=dtype)),
            RuntimeError,
            "Invalid scalar type",
        )
    calls: dict[str, Callable[[int, Callable[[int], torch.Tensor]], object]] = {
        "broadcast": lambda rank, new: dist.broadcast(new(2), 0),
        "reduce": lambda rank, new: dist.reduce(new(2), 0),
        "all_gather": lambda rank, new: dist.all_gather([new(2), new(2)], new(2)),
        "all_gather_single": lambda rank, new: all_gather_single(new(4), new(2)),
        "all_gather_coalesced": lambda rank, new: dist.all_gather_coalesced([[new(2)], [new(2)]], [new(2)]),
        "all_reduce_coalesced": lambda rank, new: dist.all_reduce_coalesced([new(2), new(1)]),
        "gather": lambda rank, new: dist.gather(new(2), [new(2), new(2)] if rank == 0 else None),
        "scatter": lambda rank, new: dist.scatter(new(2), [new(2), new(2)] if rank == 0 else None),
        "reduce_scatter": lambda rank, new: dist.reduce_scatter(new(2), [new(2), new(2)]),
        "reduce_scatter_single": lambda rank, new: reduce_scatter_single(new(2), new(4)),
        "all_to_all": lambda rank, new: dist.all_to_all([new(2), new(2)], [new(2), new(2)]),
        "all_to_all_single": lambda rank, new: dist.all_to_all_single(new(2), new(2)),
        "functional-all_reduce": lambda rank, new: functional.wait_tensor(
            functional.all_reduce(new(2), "sum", dist.group.WORLD)
        ),
    }
    for name, call in calls.items():
        yield ErrorCase(
            f"{name}-int16",
            lambda rank, call=call: call(rank, lambda size: zeros(size, dtype=torch.int16)),
            RuntimeError,
            "Invalid scalar type",
        )


def _reductions() -> Iterator[ErrorCase]:
    operations = dist.ReduceOp
    for name in ("BAND", "BOR", "BXOR"):
        for dtype in FLOATING:
            yield ErrorCase(
                f"all_reduce-{name}-{dtype_name(dtype)}",
                lambda rank, name=name, dtype=dtype: dist.all_reduce(zeros(2, dtype=dtype), getattr(operations, name)),
                RuntimeError,
                f"Cannot use ReduceOp.{name} with non-integral dtype",
            )
    for dtype, kind in zip((*INTEGRAL, torch.bool), ("Char", "Byte", "Int", "Long", "Bool"), strict=True):
        yield ErrorCase(
            f"all_reduce-AVG-{dtype_name(dtype)}",
            lambda rank, dtype=dtype: dist.all_reduce(zeros(2, dtype=dtype), operations.AVG),
            RuntimeError,
            f"result type Float can't be cast to the desired output type {kind}",
        )
    for name in ("PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        for dtype in COMPLEX:
            yield ErrorCase(
                f"all_reduce-{name}-{dtype_name(dtype)}",
                lambda rank, name=name, dtype=dtype: dist.all_reduce(zeros(2, dtype=dtype), getattr(operations, name)),
                ValueError,
                f"all_reduce does not support RedOpType.{name} on complex tensors",
            )
    yield ErrorCase(
        "all_reduce_coalesced-MAX-complex64",
        lambda rank: dist.all_reduce_coalesced([zeros(2, dtype=torch.complex64)], operations.MAX),
        ValueError,
        "all_reduce does not support RedOpType.MAX on complex tensors",
    )
    # Here the C++ code says it, and puts the reduction's number in as a character.
    yield ErrorCase(
        "reduce-MAX-complex64",
        lambda rank: dist.reduce(zeros(2, dtype=torch.complex64), 0, operations.MAX),
        RuntimeError,
        "reduce does not support",
    )
    yield ErrorCase(
        "reduce_scatter-MAX-complex64",
        lambda rank: dist.reduce_scatter(
            zeros(2, dtype=torch.complex64), [zeros(2, dtype=torch.complex64)] * 2, operations.MAX
        ),
        RuntimeError,
        "on complex tensors",
    )
    bitwise: dict[str, Callable[[int], object]] = {
        "reduce-BAND": lambda rank: dist.reduce(zeros(2), 0, operations.BAND),
        "reduce_scatter-BOR": lambda rank: dist.reduce_scatter(zeros(2), [zeros(2), zeros(2)], operations.BOR),
        "reduce_scatter_single-BXOR": lambda rank: reduce_scatter_single(zeros(2), zeros(4), operations.BXOR),
    }
    for name, call in bitwise.items():
        yield ErrorCase(
            f"{name}-float32",
            call,
            RuntimeError,
            f"Cannot use ReduceOp.{name.rpartition('-')[2]} with non-integral dtype",
        )
    yield ErrorCase(
        "all_reduce-PREMUL_SUM-int16",
        lambda rank: dist.all_reduce(zeros(2, dtype=torch.int16), dist._make_nccl_premul_sum(PREMUL_FACTOR)),
        RuntimeError,
        "Invalid scalar type",
    )
    for name, operation in (("text", "sum"), ("none", None), ("number", 0)):
        yield ErrorCase(
            f"all_reduce-operation-{name}",
            lambda rank, operation=operation: dist.all_reduce(zeros(2), operation),
            TypeError,
            "incompatible function arguments",
        )
    yield ErrorCase(
        "functional-all_reduce-unknown-operation",
        lambda rank: functional.all_reduce(zeros(2), "nope", dist.group.WORLD),
        RuntimeError,
        "Unrecognized reduce_op: nope",
    )
    yield ErrorCase(
        "functional-all_reduce-band-float32",
        lambda rank: functional.wait_tensor(functional.all_reduce(zeros(2), "band", dist.group.WORLD)),
        RuntimeError,
        "Cannot use ReduceOp.BAND with non-integral dtype",
    )


def _mixed_dtypes() -> Iterator[ErrorCase]:
    double = torch.float64
    in_python: dict[str, Callable[[int], object]] = {
        "all_gather-output": lambda rank: dist.all_gather([zeros(2), zeros(2)], zeros(2, dtype=double)),
        "all_gather-one-output": lambda rank: dist.all_gather([zeros(2), zeros(2, dtype=double)], zeros(2)),
        "gather": lambda rank: dist.gather(zeros(2), [zeros(2, dtype=double)] * 2 if rank == 0 else None),
        "scatter": lambda rank: dist.scatter(zeros(2), [zeros(2, dtype=double)] * 2 if rank == 0 else None),
        "reduce_scatter": lambda rank: dist.reduce_scatter(zeros(2), [zeros(2), zeros(2, dtype=double)]),
        "all_to_all": lambda rank: dist.all_to_all([zeros(2), zeros(2)], [zeros(2), zeros(2, dtype=double)]),
        "all_to_all_single": lambda rank: dist.all_to_all_single(zeros(2), zeros(2, dtype=double)),
        "all_reduce_coalesced": lambda rank: dist.all_reduce_coalesced([zeros(2), zeros(2, dtype=double)]),
        "all_gather_coalesced": lambda rank: dist.all_gather_coalesced(
            [[zeros(2), zeros(2)]] * 2, [zeros(2), zeros(2, dtype=double)]
        ),
    }
    for name, call in in_python.items():
        yield ErrorCase(
            f"{name}-mixed-dtypes",
            call,
            ValueError,
            "Invalid usage of tensors with different dtypes",
            ranks=(0,) if name in ("gather", "scatter") else (),
        )
    yield ErrorCase(
        "all_gather_single-mixed-dtypes",
        lambda rank: all_gather_single(zeros(4, dtype=double), zeros(2)),
        RuntimeError,
        "ProcessGroupGloo::allgather: invalid tensor type at index 0 (expected TensorOptions(dtype=float, device=cpu, "
        "layout=Strided, requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt)), got "
        "TensorOptions(dtype=double, ",
    )
    yield ErrorCase(
        "all_gather_coalesced-outputs-mixed-dtypes",
        lambda rank: dist.all_gather_coalesced([[zeros(2, dtype=double)], [zeros(2)]], [zeros(2)]),
        RuntimeError,
        "ProcessGroupGloo::allgather_coalesced: invalid tensor type at index 0 "
        "(expected torch.FloatTensor, got torch.DoubleTensor)",
    )
    yield ErrorCase(
        "reduce_scatter_single-mixed-dtypes",
        lambda rank: reduce_scatter_single(zeros(2, dtype=double), zeros(4)),
        RuntimeError,
        "Check failed: outputTensors[i].dtype() == inputTensors[i].dtype() (double vs. float)",
    )


def _kinds() -> Iterator[ErrorCase]:
    """Something else where a tensor, or a list of tensors, is wanted."""
    tensors: dict[str, tuple[Callable[[int], object], str]] = {
        "all_reduce": (lambda rank: dist.all_reduce([zeros(2)]), "tensor"),
        "broadcast": (lambda rank: dist.broadcast(3, 0), "tensor"),
        "reduce": (lambda rank: dist.reduce(None, 0), "tensor"),
        "all_gather": (lambda rank: dist.all_gather([zeros(2), zeros(2)], 3), "tensor"),
        "all_gather_single-input": (lambda rank: all_gather_single(zeros(2), [zeros(1)]), "input_tensor"),
        "all_gather_single-output": (lambda rank: all_gather_single([zeros(2)], zeros(1)), "output_tensor"),
        "gather": (lambda rank: dist.gather([zeros(2)]), "tensor"),
        "scatter": (lambda rank: dist.scatter([zeros(2)]), "tensor"),
        "reduce_scatter": (lambda rank: dist.reduce_scatter([zeros(2)], [zeros(2), zeros(2)]), "output"),
        "reduce_scatter_single": (lambda rank: reduce_scatter_single(zeros(2), [zeros(4)]), "input"),
        "all_to_all_single": (lambda rank: dist.all_to_all_single(zeros(2), [zeros(2)]), "input"),
        "isend": (lambda rank: dist.isend([zeros(2)], 1 - rank), "tensor"),
        "irecv": (lambda rank: dist.irecv(1.0, 1 - rank), "tensor"),
    }
    for name, (call, parameter) in tensors.items():
        yield ErrorCase(
            f"{name}-no-tensor",
            call,
            TypeError,
            f"Invalid function argument. Expected parameter `{parameter}` of type torch.Tensor",
        )
    lists: dict[str, tuple[Callable[[int], object], str]] = {
        "all_gather": (lambda rank: dist.all_gather(zeros(2, 2), zeros(2)), "tensor_list"),
        "all_gather-tuple": (lambda rank: dist.all_gather((zeros(2), zeros(2)), zeros(2)), "tensor_list"),
        "all_gather-elements": (lambda rank: dist.all_gather([zeros(2), 3], zeros(2)), "tensor_list"),
        "reduce_scatter": (lambda rank: dist.reduce_scatter(zeros(2), zeros(2, 2)), "input_list"),
        "all_to_all": (lambda rank: dist.all_to_all(zeros(2, 2), [zeros(2), zeros(2)]), "output_tensor_list"),
        "all_reduce_coalesced": (lambda rank: dist.all_reduce_coalesced((zeros(2),)), "tensor"),
    }
    for name, (call, parameter) in lists.items():
        yield ErrorCase(
            f"{name}-no-list",
            call,
            TypeError,
            f"Invalid function argument. Expected parameter `{parameter}` of type List[torch.Tensor]",
        )
    yield ErrorCase(
        "all_gather_coalesced-no-list",
        lambda rank: dist.all_gather_coalesced(zeros(2, 2), [zeros(2)]),
        TypeError,
        "Invalid function argument: output_tensor_lists should be a list",
    )
    # pybind11 says it, where it gets to see the value; a group in Python has to say it itself.
    for name, call in (
        ("reduce-root-text", lambda rank: dist.reduce(zeros(2), "0")),
        ("broadcast-root-fraction", lambda rank: dist.broadcast(zeros(2), 0.5)),
        (
            "all_to_all_single-splits-fraction",
            lambda rank: dist.all_to_all_single(zeros(2), zeros(2), [1.0, 1.0], [1, 1]),
        ),
        ("isend-destination-text", lambda rank: dist.isend(zeros(2), "1")),
        ("isend-tag-beyond-an-int", lambda rank: dist.isend(zeros(2), 1 - rank, tag=2**31)),
        ("irecv-tag-beyond-an-int", lambda rank: dist.irecv(zeros(2), 1 - rank, tag=2**31)),
        ("irecv-any-tag-below-an-int", lambda rank: dist.irecv(zeros(2), tag=-(2**31) - 1)),
        ("isend-tag-fraction", lambda rank: dist.isend(zeros(2), 1 - rank, tag=1.0)),
    ):
        yield ErrorCase(name, call, TypeError, "")
