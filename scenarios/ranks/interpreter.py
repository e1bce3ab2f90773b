"""Runs a rank of a program by plain torch.distributed calls, inside `simulate` or in a process of its own.

A call that stands for a line of another program is made from there, as far as anybody can tell who looks for the line
of a call: in findings, reports and records it is that line, and none of these.

What tensors hold follows from name, rank and number, so two runs of a program send the same.
Fractions are such that sums round, and all numbers so small that nothing overflows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CellType, FunctionType
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.simulator.calls import ANY_SOURCE, Shape, Site
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.programs.dtypes import FRACTIONAL
from ddpsim.simulator.programs.program import CRASH, DEFAULT, Crash, Group, Issue, Program, Return, Wait
from ddpsim.simulator.runtime.call_sites import GENERATED

_reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
# torch 2.13 renamed them and warns at the old names; 2.11 has only those.


class Output(NamedTuple):
    """A tensor as plain values."""

    dtype: str
    shape: Shape
    content: bytes


class Outputs(dict[str, list[Output]]):
    """What the calls a rank waited for have left in its output tensors, by name.

    The works of all calls live as long as this does, for a message whose handle is dropped is never sent by gloo: keep
    it until all ranks have ended. They are not pickled.
    """

    works: Sequence[Any] = ()

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class _Issued(NamedTuple):
    """A call on its way."""

    work: Any
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


_IssueOne = Callable[[Issue, int, Any], _Issued]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def site_of(issue: Issue) -> Site:
    """What `check` is to take for a call's line: its own, or, as all of an operation come from one, one of here."""
    return issue.site or Site(issue.operation, 0, "")


def run_steps(rank: int, program: Program) -> Outputs:
    """Do the steps of `rank`; torch.distributed is initialised."""
    groups = {DEFAULT: dist.group.WORLD}
    for group in program.groups:
        groups[group.name] = _at(_first_site(program), _new_group)(group)
    issued: dict[str, _Issued] = {}
    sites: dict[str, Site | None] = {}
    outputs = Outputs()
    outputs.works = works = []
    for step in program.ranks[rank]:
        if isinstance(step, Issue):
            issued[step.name] = _at(step.site, ISSUE[step.operation])(step, rank, groups[step.group])
            sites[step.name] = step.site
            works.append(issued[step.name])
        elif isinstance(step, Wait):
            _at(sites[step.name], _wait)(issued[step.name])
            outputs[step.name] = [_output(tensor) for tensor in issued[step.name].outputs]
        elif isinstance(step, Crash):
            raise InjectedCrashError(CRASH)
        elif isinstance(step, Return):
            break
    return outputs


def _unseen(function: Callable[..., Any]) -> FunctionType:
    """The same function, no line of which is taken for one of the program."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__.replace(co_filename=GENERATED), function.__globals__)


run_placed_steps = _unseen(run_steps)
run_placed_steps.__qualname__ = "run_placed_steps"  # by which it is found in a process of its own


def runner_of(program: Program) -> Callable[[int, Program], Outputs]:
    """What does the steps of a rank: `run_steps`, or its like where calls stand for lines of another program."""
    has_places = any(isinstance(step, Issue) and step.site for steps in program.ranks for step in steps)
    return run_placed_steps if has_places else run_steps


def _at(site: Site | None, function: _Function) -> _Function:
    """The function, called from a line of another program, if there is one."""
    return function if site is None else cast(_Function, _from(site, function))


@lru_cache(maxsize=1024)
def _from(site: Site, function: Callable[..., Any]) -> Callable[..., Any]:
    unseen = _unseen(function)
    caller = (lambda *arguments: unseen(*arguments)).__code__  # on one line, the first
    place = caller.replace(co_filename=site.path, co_firstlineno=site.line, co_name=site.function or "<module>")
    return FunctionType(place, globals(), closure=(CellType(unseen),))


def _first_site(program: Program) -> Site | None:
    """What stands for where groups were made, which no record tells."""
    return next((step.site for steps in program.ranks for step in steps if isinstance(step, Issue) and step.site), None)


def _new_group(group: Group) -> Any:
    return dist.new_group(list(group.ranks), group_desc=group.name)


def _wait(issued: _Issued) -> None:
    issued.work.wait()


def sent(issue: Issue, rank: int) -> list[Tensor]:
    """The tensors of its shapes that a rank brings to a call."""
    return [_filled(issue, rank, shape, number) for number, shape in enumerate(issue.shapes)]


def _filled(issue: Issue, rank: int, shape: Shape, number: int) -> Tensor:
    """What tensor `number` of a call holds on a rank.

    Fractions are between 1 and 2, of either sign, in steps of 1/997: no binary fractions, so that sums round.
    """
    seed = zlib.crc32(f"{issue.name}/{rank}/{number}".encode())
    drawn = (torch.arange(torch.Size(shape).numel()) * 7919 + seed) % 1994
    if issue.dtype in FRACTIONAL:
        values = (1 + (drawn % 997).double() / 997) * (1 - 2 * (drawn >= 997))
    else:
        lowest, count = _WHOLE_RANGES.get(str(issue.dtype), (-3, 7))
        values = lowest + drawn % count
    return values.to(_dtype(issue)).reshape(shape)


_WHOLE_RANGES = {"bool": (0, 2), "uint8": (0, 4)}
"""The lowest number of a dtype, and how many there are."""


def _dtype(issue: Issue) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, str(issue.dtype))
    return dtype


def _reduction(issue: Issue) -> Any:
    return getattr(dist.ReduceOp, str(issue.reduction))


def _blank(issue: Issue, shape: Sequence[int]) -> Tensor:
    return torch.zeros(shape, dtype=_dtype(issue))


def _output(tensor: Tensor) -> Output:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return Output(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), content)


# --- one function an operation, which issues it -----------------------------------------------------------------------


def _all_reduce(issue: Issue, rank: int, group: Any) -> _Issued:
    tensors = sent(issue, rank)
    return _Issued(dist.all_reduce(tensors[0], _reduction(issue), group=group, async_op=True), tensors, tensors)


def _all_reduce_coalesced(issue: Issue, rank: int, group: Any) -> _Issued:
    tensors = sent(issue, rank)
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = _reduction(issue)
    return _Issued(group.allreduce_coalesced(tensors, options), tensors, tensors)


def _broadcast(issue: Issue, rank: int, group: Any) -> _Issued:
    tensors = sent(issue, rank)
    return _Issued(dist.broadcast(tensors[0], issue.root, group=group, async_op=True), tensors, tensors)


def _reduce(issue: Issue, rank: int, group: Any) -> _Issued:
    tensors = sent(issue, rank)
    work = dist.reduce(tensors[0], issue.root, _reduction(issue), group=group, async_op=True)
    # Elsewhere gloo leaves partial sums.
    return _Issued(work, tensors, tensors if rank == issue.root else [])


def _all_gather(issue: Issue, rank: int, group: Any) -> _Issued:
    inputs = sent(issue, rank)
    outputs = [_blank(issue, issue.shapes[0]) for _ in range(group.size())]
    return _Issued(dist.all_gather(outputs, inputs[0], group=group, async_op=True), inputs, outputs)


def _all_gather_coalesced(issue: Issue, rank: int, group: Any) -> _Issued:
    inputs = sent(issue, rank)
    outputs = [[_blank(issue, shape) for shape in issue.shapes] for _ in range(group.size())]
    return _Issued(group.allgather_coalesced(outputs, inputs), inputs, [each for own in outputs for each in own])


def _all_gather_into_tensor(issue: Issue, rank: int, group: Any) -> _Issued:
    inputs = sent(issue, rank)
    rows, *rest = issue.shapes[0]
    output = _blank(issue, (rows * group.size(), *rest))
    return _Issued(_all_gather_single(output, inputs[0], group=group, async_op=True), inputs, [output])


def _gather(issue: Issue, rank: int, group: Any) -> _Issued:
    inputs = sent(issue, rank)
    outputs = [_blank(issue, issue.shapes[0]) for _ in range(group.size())] if rank == issue.root else []
    work = dist.gather(inputs[0], outputs or None, dst=issue.root, group=group, async_op=True)
    return _Issued(work, inputs, outputs)


def _scatter(issue: Issue, rank: int, group: Any) -> _Issued:
    numbers = range(group.size()) if rank == issue.root else ()
    inputs = [_filled(issue, rank, issue.shapes[0], number) for number in numbers]
    output = _blank(issue, issue.shapes[0])
    work = dist.scatter(output, inputs or None, src=issue.root, group=group, async_op=True)
    return _Issued(work, inputs, [output])


def _reduce_scatter(issue: Issue, rank: int, group: Any) -> _Issued:
    inputs = sent(issue, rank)
    output = _blank(issue, issue.shapes[group.rank()])
    work = dist.reduce_scatter(output, inputs, _reduction(issue), group=group, async_op=True)
    return _Issued(work, inputs, [output])


def _reduce_scatter_tensor(issue: Issue, rank: int, group: Any) -> _Issued:
    inputs = sent(issue, rank)
    rows, *rest = issue.shapes[0]
    output = _blank(issue, (rows // group.size(), *rest))
    work = _reduce_scatter_single(output, inputs[0], _reduction(issue), group=group, async_op=True)
    return _Issued(work, inputs, [output])


def _all_to_all(issue: Issue, rank: int, group: Any) -> _Issued:
    inputs = sent(issue, rank)
    outputs = [_blank(issue, shape) for shape in issue.shapes]
    return _Issued(dist.all_to_all(outputs, inputs, group=group, async_op=True), inputs, outputs)


def _all_to_all_single(issue: Issue, rank: int, group: Any) -> _Issued:
    assert issue.splits is not None
    sending, receiving = map(list, issue.splits)
    tensor, output = _filled(issue, rank, issue.shapes[0], 0), _blank(issue, issue.shapes[1])
    work = dist.all_to_all_single(output, tensor, receiving, sending, group=group, async_op=True)
    return _Issued(work, [tensor], [output])


def _barrier(issue: Issue, rank: int, group: Any) -> _Issued:
    return _Issued(dist.barrier(group=group, async_op=True), [], [])


def _send(issue: Issue, rank: int, group: Any) -> _Issued:
    inputs = sent(issue, rank)
    return _Issued(dist.isend(inputs[0], issue.peer, group=group, tag=issue.tag), inputs, [])


def _receive(issue: Issue, rank: int, group: Any) -> _Issued:
    output = _blank(issue, issue.shapes[0])
    source = None if issue.peer == ANY_SOURCE else issue.peer
    return _Issued(dist.irecv(output, source, group=group, tag=issue.tag), [], [output])


ISSUE: dict[str, _IssueOne] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "barrier": _barrier,
    "send": _send,
    "recv": _receive,
}
