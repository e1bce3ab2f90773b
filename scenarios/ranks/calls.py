"""The calls of programs: how a rank issues each call in plain torch.distributed, and how a generated test writes it.

The values of a tensor depend only on call name, rank and tensor number, so two runs of a program send the same values.
The values are fractions whose sums round, and small enough that nothing overflows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.simulator.calls import ANY_SOURCE, Shape
from ddpsim.simulator.programs.program import FRACTIONAL, Issue

_GATHER_SINGLE = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
_SCATTER_SINGLE = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
# torch 2.13 renamed them and warns at the old names; 2.11 has only those.


class IssuedProgramCall(NamedTuple):
    """A call that a rank has issued, with its work handle."""

    work: Any
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


def input_tensors(issue: Issue, rank: int) -> list[Tensor]:
    """Return the input tensors of a rank's call, one for each shape of the call."""
    return [_filled_tensor(issue, rank, shape, number) for number, shape in enumerate(issue.shapes)]


def _filled_tensor(issue: Issue, rank: int, shape: Shape, number: int) -> Tensor:
    """Return tensor `number` of a call, filled with values for this rank.

    Values are between 1 and 2, of either sign, in steps of 1/997. They are no binary fractions, so sums round.
    """
    seed = zlib.crc32(f"{issue.name}/{rank}/{number}".encode())
    drawn = (torch.arange(torch.Size(shape).numel()) * 7919 + seed) % 1994
    if issue.dtype in FRACTIONAL:
        values = (1 + (drawn % 997).double() / 997) * (1 - 2 * (drawn >= 997))
    else:
        lowest, count = _WHOLE_RANGES.get(str(issue.dtype), (-3, 7))
        values = lowest + drawn % count
    return values.to(_torch_dtype(issue)).reshape(shape)


_WHOLE_RANGES = {"bool": (0, 2), "uint8": (0, 4)}
"""For dtypes with few values: the lowest value to fill in, and the number of different values."""


def _torch_dtype(issue: Issue) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, str(issue.dtype))
    return dtype


def _torch_reduction(issue: Issue) -> Any:
    return getattr(dist.ReduceOp, str(issue.reduction))


def _output_tensor(issue: Issue, shape: Sequence[int]) -> Tensor:
    return torch.zeros(shape, dtype=_torch_dtype(issue))


# --- one function per operation, which issues it ----------------------------------------------------------------------


def _all_reduce(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    tensors = input_tensors(issue, rank)
    return IssuedProgramCall(
        dist.all_reduce(tensors[0], _torch_reduction(issue), group=group, async_op=True), tensors, tensors
    )


def _all_reduce_coalesced(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    tensors = input_tensors(issue, rank)
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = _torch_reduction(issue)
    return IssuedProgramCall(group.allreduce_coalesced(tensors, options), tensors, tensors)


def _broadcast(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    tensors = input_tensors(issue, rank)
    return IssuedProgramCall(dist.broadcast(tensors[0], issue.root, group=group, async_op=True), tensors, tensors)


def _reduce(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    tensors = input_tensors(issue, rank)
    work = dist.reduce(tensors[0], issue.root, _torch_reduction(issue), group=group, async_op=True)
    # On other ranks gloo leaves partial sums.
    return IssuedProgramCall(work, tensors, tensors if rank == issue.root else [])


def _all_gather(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    inputs = input_tensors(issue, rank)
    outputs = [_output_tensor(issue, issue.shapes[0]) for _ in range(group.size())]
    return IssuedProgramCall(dist.all_gather(outputs, inputs[0], group=group, async_op=True), inputs, outputs)


def _all_gather_coalesced(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    inputs = input_tensors(issue, rank)
    outputs = [[_output_tensor(issue, shape) for shape in issue.shapes] for _ in range(group.size())]
    return IssuedProgramCall(
        group.allgather_coalesced(outputs, inputs), inputs, [each for own in outputs for each in own]
    )


def _all_gather_into_tensor(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    inputs = input_tensors(issue, rank)
    rows, *rest = issue.shapes[0]
    output = _output_tensor(issue, (rows * group.size(), *rest))
    return IssuedProgramCall(
        getattr(dist, _GATHER_SINGLE)(output, inputs[0], group=group, async_op=True), inputs, [output]
    )


def _gather(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    inputs = input_tensors(issue, rank)
    outputs = [_output_tensor(issue, issue.shapes[0]) for _ in range(group.size())] if rank == issue.root else []
    work = dist.gather(inputs[0], outputs or None, dst=issue.root, group=group, async_op=True)
    return IssuedProgramCall(work, inputs, outputs)


def _scatter(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    numbers = range(group.size()) if rank == issue.root else ()
    inputs = [_filled_tensor(issue, rank, issue.shapes[0], number) for number in numbers]
    output = _output_tensor(issue, issue.shapes[0])
    work = dist.scatter(output, inputs or None, src=issue.root, group=group, async_op=True)
    return IssuedProgramCall(work, inputs, [output])


def _reduce_scatter(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    inputs = input_tensors(issue, rank)
    output = _output_tensor(issue, issue.shapes[group.rank()])
    work = dist.reduce_scatter(output, inputs, _torch_reduction(issue), group=group, async_op=True)
    return IssuedProgramCall(work, inputs, [output])


def _reduce_scatter_tensor(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    inputs = input_tensors(issue, rank)
    rows, *rest = issue.shapes[0]
    output = _output_tensor(issue, (rows // group.size(), *rest))
    work = getattr(dist, _SCATTER_SINGLE)(output, inputs[0], _torch_reduction(issue), group=group, async_op=True)
    return IssuedProgramCall(work, inputs, [output])


def _all_to_all(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    inputs = input_tensors(issue, rank)
    outputs = [_output_tensor(issue, shape) for shape in issue.shapes]
    return IssuedProgramCall(dist.all_to_all(outputs, inputs, group=group, async_op=True), inputs, outputs)


def _all_to_all_single(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    assert issue.splits is not None
    sending, receiving = map(list, issue.splits)
    tensor, output = _filled_tensor(issue, rank, issue.shapes[0], 0), _output_tensor(issue, issue.shapes[1])
    work = dist.all_to_all_single(output, tensor, receiving, sending, group=group, async_op=True)
    return IssuedProgramCall(work, [tensor], [output])


def _barrier(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    return IssuedProgramCall(dist.barrier(group=group, async_op=True), [], [])


def _send(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    inputs = input_tensors(issue, rank)
    return IssuedProgramCall(dist.isend(inputs[0], issue.peer, group=group, tag=issue.tag), inputs, [])


def _receive(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    output = _output_tensor(issue, issue.shapes[0])
    source = None if issue.peer == ANY_SOURCE else issue.peer
    return IssuedProgramCall(dist.irecv(output, source, group=group, tag=issue.tag), [], [output])


# --- the same calls as Python source for a test -----------------------------------------------------------------------


def _tensor_text(maker: str, issue: Issue, shape: Shape) -> str:
    size = repr(shape[0]) if len(shape) == 1 else repr(tuple(shape))
    dtype = "" if issue.dtype == "float32" else f", dtype=torch.{issue.dtype}"
    return f"torch.{maker}({size}{dtype})"


def _input_text(issue: Issue) -> str:
    return _tensor_text("ones", issue, issue.shapes[0])


def _output_text(issue: Issue, shape: Shape) -> str:
    return _tensor_text("zeros", issue, shape)


def _repeated_text(each: str, size: int) -> str:
    return f"[{each} for _ in range({size})]"


def _tensors_text(maker: str, issue: Issue) -> str:
    """Return Python source that makes one tensor per shape."""
    if len(set(issue.shapes)) == 1:
        return _repeated_text(_tensor_text(maker, issue, issue.shapes[0]), len(issue.shapes))
    return f"[{', '.join(_tensor_text(maker, issue, shape) for shape in issue.shapes)}]"


def _reduction_text(issue: Issue) -> list[str]:
    return [] if issue.reduction in (None, "SUM") else [f"op=dist.ReduceOp.{issue.reduction}"]


def _gather_text(issue: Issue, size: int) -> list[str]:
    room = f"{_repeated_text(_output_text(issue, issue.shapes[0]), size)} if rank == {issue.root} else None"
    return ["gather", _input_text(issue), room, f"dst={issue.root}"]


def _scatter_text(issue: Issue, size: int) -> list[str]:
    sent = f"{_repeated_text(_input_text(issue), size)} if rank == {issue.root} else None"
    return ["scatter", _output_text(issue, issue.shapes[0]), sent, f"src={issue.root}"]


def _all_gather_into_tensor_text(issue: Issue, size: int) -> list[str]:
    rows, *rest = issue.shapes[0]
    return [_GATHER_SINGLE, _output_text(issue, (rows * size, *rest)), _input_text(issue)]


def _reduce_scatter_tensor_text(issue: Issue, size: int) -> list[str]:
    rows, *rest = issue.shapes[0]
    return [_SCATTER_SINGLE, _output_text(issue, (rows // size, *rest)), _input_text(issue), *_reduction_text(issue)]


def _all_to_all_single_text(issue: Issue, size: int) -> list[str]:
    assert issue.splits is not None
    sending, receiving = map(list, issue.splits)
    return [
        "all_to_all_single",
        _output_text(issue, issue.shapes[1]),
        _input_text(issue),
        repr(receiving),
        repr(sending),
    ]


def _receive_text(issue: Issue, size: int) -> list[str]:
    source = [] if issue.peer == ANY_SOURCE else [repr(issue.peer)]
    return ["irecv", _output_text(issue, issue.shapes[0]), *source]


class ProgramCall(NamedTuple):
    """An operation of programs: one row of the table `CALLS`."""

    issue: Callable[[Issue, int, Any], IssuedProgramCall]
    """A function that makes the call on a rank, in a torch process group."""
    text: Callable[[Issue, int], list[str]]
    """A function that returns the torch.distributed function and its arguments as Python source, for a group of that
    many ranks."""


CALLS = {
    "all_reduce": ProgramCall(
        _all_reduce, lambda issue, size: ["all_reduce", _input_text(issue), *_reduction_text(issue)]
    ),
    "all_reduce_coalesced": ProgramCall(
        _all_reduce_coalesced,
        lambda issue, size: ["all_reduce_coalesced", _tensors_text("ones", issue), *_reduction_text(issue)],
    ),
    "broadcast": ProgramCall(_broadcast, lambda issue, size: ["broadcast", _input_text(issue), f"src={issue.root}"]),
    "reduce": ProgramCall(
        _reduce, lambda issue, size: ["reduce", _input_text(issue), f"dst={issue.root}", *_reduction_text(issue)]
    ),
    "all_gather": ProgramCall(
        _all_gather,
        lambda issue, size: [
            "all_gather",
            _repeated_text(_output_text(issue, issue.shapes[0]), size),
            _input_text(issue),
        ],
    ),
    "all_gather_coalesced": ProgramCall(
        _all_gather_coalesced,
        lambda issue, size: [
            "all_gather_coalesced",
            _repeated_text(_tensors_text("zeros", issue), size),
            _tensors_text("ones", issue),
        ],
    ),
    "all_gather_into_tensor": ProgramCall(_all_gather_into_tensor, _all_gather_into_tensor_text),
    "gather": ProgramCall(_gather, _gather_text),
    "scatter": ProgramCall(_scatter, _scatter_text),
    "reduce_scatter": ProgramCall(
        _reduce_scatter,
        lambda issue, size: [
            "reduce_scatter",
            _output_text(issue, issue.shapes[0]),
            _tensors_text("ones", issue),
            *_reduction_text(issue),
        ],
    ),
    "reduce_scatter_tensor": ProgramCall(_reduce_scatter_tensor, _reduce_scatter_tensor_text),
    "all_to_all": ProgramCall(
        _all_to_all, lambda issue, size: ["all_to_all", _tensors_text("zeros", issue), _tensors_text("ones", issue)]
    ),
    "all_to_all_single": ProgramCall(_all_to_all_single, _all_to_all_single_text),
    "barrier": ProgramCall(_barrier, lambda issue, size: ["barrier"]),
    "send": ProgramCall(_send, lambda issue, size: ["isend", _input_text(issue), repr(issue.peer)]),
    "recv": ProgramCall(_receive, _receive_text),
}
"""All operations by name."""
