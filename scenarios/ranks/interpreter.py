"""Runs the steps of a rank as plain torch.distributed calls, inside `simulate` or in a process of its own.

A call may represent a line of another program. Such a call is made from a code object with that file and line, so that
findings, reports and records show that line and no line of ddpsim.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.scenarios.ranks.calls import IssuedProgramCall, issue_call
from ddpsim.simulator.calls import Shape, Site
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.programs.program import CRASH, DEFAULT, CrashStep, Group, Issue, Program, Return, Wait
from ddpsim.simulator.runtime.call_sites import GENERATED


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
