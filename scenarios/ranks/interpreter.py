"""Runs a rank of a program by plain torch.distributed calls, inside `simulate` or in a process of its own.

A call that stands for a line of another program is made from there, as far as anybody can tell who looks for the line
of a call: in findings, reports and records it is that line, and none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CellType, FunctionType
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.scenarios.ranks.calls import CALLS, Issued
from ddpsim.simulator.calls import Shape, Site
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.programs.program import CRASH, DEFAULT, Crash, Group, Issue, Program, Return, Wait
from ddpsim.simulator.runtime.call_sites import GENERATED


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


_Function = TypeVar("_Function", bound=Callable[..., Any])


def site_of(issue: Issue) -> Site:
    """What `check` is to take for a call's line: its own, or, as all of an operation come from one, one of here."""
    return issue.site or Site(issue.operation, 0, "")


def run_steps(rank: int, program: Program) -> Outputs:
    """Do the steps of `rank`; torch.distributed is initialised."""
    groups = {DEFAULT: dist.group.WORLD}
    for group in program.groups:
        groups[group.name] = _at(_first_site(program), _new_group)(group)
    issued: dict[str, Issued] = {}
    sites: dict[str, Site | None] = {}
    outputs = Outputs()
    outputs.works = works = []
    for step in program.ranks[rank]:
        if isinstance(step, Issue):
            issued[step.name] = _at(step.site, CALLS[step.operation].issue)(step, rank, groups[step.group])
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


def _wait(issued: Issued) -> None:
    issued.work.wait()


def _output(tensor: Tensor) -> Output:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return Output(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), content)
