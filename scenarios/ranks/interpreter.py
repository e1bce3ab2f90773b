"""Runs the steps of a rank as plain torch.distributed calls, inside `simulate` or in a process of its own; says how a
generated test writes each call.

The values of a tensor depend only on call name, rank and tensor number, so two runs of a program send the same values.
The values are fractions whose sums round, and small enough that nothing overflows.

A call may represent a line of another program. Such a call is made from a code object with that file and line, so that
findings, reports and records show that line and no line of ddpsim.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.simulator.calls import ANY_SOURCE, Shape, Site
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.programs.program import CRASH, DEFAULT, FRACTIONAL, CrashStep, Group, Issue, Program, Return, Wait
from ddpsim.simulator.runtime.call_sites import GENERATED

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
    """Return tensor `number` of a call: values from 1 to 2, of either sign, in steps of 1/997, whose sums round."""
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


class _Tensors(NamedTuple):
    """One argument of a call: a tensor, a list of tensors, or a list of such lists."""

    shapes: Callable[[Issue, int, int], Any]
    """Returns the shape of the tensor, or lists of shapes, given the number of ranks in the group and a rank of it."""
    is_output: bool = False
    is_of_root: bool = False
    """True if only the root gives this argument, and the other ranks give None."""


def _shapes(issue: Issue, size: int, rank: int) -> list[Shape]:
    return list(issue.shapes)


def _first_shape(issue: Issue, size: int, rank: int) -> Shape:
    return issue.shapes[0]


def _shape_per_rank(issue: Issue, size: int, rank: int) -> list[Shape]:
    return [issue.shapes[0]] * size


def _gathered_shape(issue: Issue, size: int, rank: int) -> Shape:
    rows, *rest = issue.shapes[0]
    return (rows * size, *rest)


def _scattered_shape(issue: Issue, size: int, rank: int) -> Shape:
    rows, *rest = issue.shapes[0]
    return (rows // size, *rest)


_ALL_SENT, _SENT, _TAKEN = _Tensors(_shapes), _Tensors(_first_shape), _Tensors(_first_shape, is_output=True)


class ProgramCall(NamedTuple):
    """An operation of programs: one row of the table `CALLS`."""

    function: str
    """The name of the function in torch.distributed."""
    tensors: tuple[_Tensors, ...] = ()
    """The first arguments; the others follow from the fields of an `Issue`."""
    root: str = ""
    """The name of the function's argument for the root, if it has one."""
    is_in_place: bool = False
    """True if the function overwrites the tensors that it sends."""


CALLS = {
    "all_reduce": ProgramCall("all_reduce", (_SENT,), is_in_place=True),
    "all_reduce_coalesced": ProgramCall("all_reduce_coalesced", (_ALL_SENT,), is_in_place=True),
    "broadcast": ProgramCall("broadcast", (_SENT,), "src", is_in_place=True),
    "reduce": ProgramCall("reduce", (_SENT,), "dst", is_in_place=True),
    "all_gather": ProgramCall("all_gather", (_Tensors(_shape_per_rank, is_output=True), _SENT)),
    "all_gather_coalesced": ProgramCall(
        "all_gather_coalesced",
        (_Tensors(lambda issue, size, rank: [list(issue.shapes)] * size, is_output=True), _ALL_SENT),
    ),
    "all_gather_into_tensor": ProgramCall(_GATHER_SINGLE, (_Tensors(_gathered_shape, is_output=True), _SENT)),
    "gather": ProgramCall("gather", (_SENT, _Tensors(_shape_per_rank, is_output=True, is_of_root=True)), "dst"),
    "scatter": ProgramCall("scatter", (_TAKEN, _Tensors(_shape_per_rank, is_of_root=True)), "src"),
    "reduce_scatter": ProgramCall(
        "reduce_scatter", (_Tensors(lambda issue, size, rank: issue.shapes[rank], is_output=True), _ALL_SENT)
    ),
    "reduce_scatter_tensor": ProgramCall(_SCATTER_SINGLE, (_Tensors(_scattered_shape, is_output=True), _SENT)),
    "all_to_all": ProgramCall("all_to_all", (_Tensors(_shapes, is_output=True), _ALL_SENT)),
    "all_to_all_single": ProgramCall(
        "all_to_all_single", (_Tensors(lambda issue, size, rank: issue.shapes[1], is_output=True), _SENT)
    ),
    "barrier": ProgramCall("barrier"),
    "send": ProgramCall("isend", (_SENT,)),
    "recv": ProgramCall("irecv", (_TAKEN,)),
}


def _each_shape(shapes: Any, make: Callable[[Shape], Any]) -> Any:
    """Apply `make` to each shape, and return the results in the same nested lists."""
    return [_each_shape(each, make) for each in shapes] if isinstance(shapes, list) else make(shapes)


def _plain_arguments(issue: Issue) -> list[Any]:
    """Return the arguments after the tensors: rows to receive and to send by rank, and the other rank of a message."""
    peers = [] if issue.peer in (None, ANY_SOURCE) else [issue.peer]
    return [*map(list, reversed(issue.splits or ())), *peers]


def issue_call(issue: Issue, rank: int, group: Any) -> IssuedProgramCall:
    """Issue a call on a rank, in a torch process group."""
    row = CALLS[issue.operation]
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def make_input(shape: Shape) -> Tensor:
        inputs.append(_filled_tensor(issue, rank, shape, len(inputs)))
        return inputs[-1]

    def make_output(shape: Shape) -> Tensor:
        outputs.append(torch.zeros(shape, dtype=_torch_dtype(issue)))
        return outputs[-1]

    arguments = [
        None
        if each.is_of_root and rank != issue.root
        else _each_shape(each.shapes(issue, group.size(), group.rank()), make_output if each.is_output else make_input)
        for each in row.tensors
    ]
    options = {row.root: issue.root} if row.root else {}
    reduction: Any = None if issue.reduction is None else getattr(dist.ReduceOp, issue.reduction)
    if issue.operation == "all_reduce_coalesced":
        coalesced = dist.AllreduceCoalescedOptions()
        coalesced.reduceOp = reduction
        work = group.allreduce_coalesced(*arguments, coalesced)
    elif issue.operation == "all_gather_coalesced":
        work = group.allgather_coalesced(*arguments)
    else:
        options |= {} if reduction is None else {"op": reduction}
        options |= {"tag": issue.tag} if row.function in ("isend", "irecv") else {"async_op": True}
        work = getattr(dist, row.function)(*arguments, *_plain_arguments(issue), group=group, **options)
    # On other ranks than the root of a `reduce`, gloo leaves partial sums.
    is_kept = row.is_in_place and (issue.operation != "reduce" or rank == issue.root)
    return IssuedProgramCall(work, inputs, inputs if is_kept else outputs)


def source_of_call(issue: Issue, size: int) -> list[str]:
    """Return the torch.distributed function and its arguments as Python source, for a group of that many ranks."""
    row = CALLS[issue.operation]
    words = [row.function]
    for each in row.tensors:
        make = partial(_tensor_text, "zeros" if each.is_output else "ones", issue)
        text = _list_text(_each_shape(each.shapes(issue, size, 0), make))
        words.append(f"{text} if rank == {issue.root} else None" if each.is_of_root else text)
    words += map(repr, _plain_arguments(issue))
    words += [f"{row.root}={issue.root}"] if row.root else []
    return words + ([] if issue.reduction in (None, "SUM") else [f"op=dist.ReduceOp.{issue.reduction}"])


def _tensor_text(maker: str, issue: Issue, shape: Shape) -> str:
    size = repr(shape[0]) if len(shape) == 1 else repr(tuple(shape))
    dtype = "" if issue.dtype == "float32" else f", dtype=torch.{issue.dtype}"
    return f"torch.{maker}({size}{dtype})"


def _list_text(texts: Any) -> str:
    """Return the source of a list, given the source of its items; the source of a single tensor is unchanged."""
    if isinstance(texts, str):
        return texts
    items = list(map(_list_text, texts))
    return f"[{items[0]} for _ in range({len(items)})]" if len(set(items)) == 1 else f"[{', '.join(items)}]"


class TensorValues(NamedTuple):
    """The values of a tensor as plain Python lists and numbers."""

    dtype: str
    shape: Shape
    content: bytes


class RankOutputs(dict[str, list[TensorValues]]):
    """The output tensors of the calls that a rank waited for, by name.

    Keep it until all ranks have ended: gloo never sends a message whose work was dropped. Works are not pickled.
    """

    works: Sequence[Any] = ()

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def site_of_step(issue: Issue) -> Site:
    """Return the line that a call has for `check`: the line that it represents, or only its operation if none."""
    return issue.parsed_site or Site(issue.operation, 0, "")


def run_rank_steps(rank: int, program: Program) -> RankOutputs:
    """Run the steps of `rank`; torch.distributed must be initialised."""
    groups = {DEFAULT: dist.group.WORLD}
    for group in program.groups:
        groups[group.name] = _as_called_from(_first_site(program), _new_group)(group)
    issued: dict[str, IssuedProgramCall] = {}
    sites: dict[str, Site | None] = {}
    outputs = RankOutputs()
    outputs.works = works = []
    for step in program.ranks[rank]:
        if isinstance(step, Issue):
            issued[step.name] = _as_called_from(step.parsed_site, issue_call)(step, rank, groups[step.group])
            sites[step.name] = step.parsed_site
            works.append(issued[step.name])
        elif isinstance(step, Wait):
            _as_called_from(sites[step.name], _wait_for_call)(issued[step.name])
            outputs[step.name] = [_tensor_as_values(tensor) for tensor in issued[step.name].outputs]
        elif isinstance(step, CrashStep):
            raise InjectedCrashError(CRASH)
        elif isinstance(step, Return):
            break
    return outputs


def _hidden_from_reports(function: Callable[..., Any]) -> FunctionType:
    """Return the same function with another file name in its code, so no finding shows its lines as the program's."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__.replace(co_filename=GENERATED), function.__globals__)


run_placed_steps = _hidden_from_reports(run_rank_steps)
run_placed_steps.__qualname__ = "run_placed_steps"  # a process of its own finds it by this name


def rank_function_of(program: Program) -> Callable[[int, Program], RankOutputs]:
    """Return the function that runs a rank's steps: `run_rank_steps`, or its variant if calls represent other lines."""
    return run_placed_steps if _first_site(program) else run_rank_steps


@lru_cache(maxsize=1024)
def _as_called_from(site: Site | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as if called from a line of another program, if a line is given."""
    if site is None:
        return function
    unseen = _hidden_from_reports(function)
    caller = (lambda *arguments: unseen(*arguments)).__code__  # on one line, the first
    place = caller.replace(co_filename=site.path, co_firstlineno=site.line, co_name=site.function or "<module>")
    return FunctionType(place, globals(), closure=(CellType(unseen),))


def _first_site(program: Program) -> Site | None:
    """Return the line to show where groups are created: the line of the first call, because records have none."""
    issues = (step for steps in program.ranks for step in steps if isinstance(step, Issue))
    return next(filter(None, (issue.parsed_site for issue in issues)), None)


def _new_group(group: Group) -> Any:
    return dist.new_group(list(group.ranks), group_desc=group.name)


def _wait_for_call(issued: IssuedProgramCall) -> None:
    issued.work.wait()


def _tensor_as_values(tensor: Tensor) -> TensorValues:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return TensorValues(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), content)
