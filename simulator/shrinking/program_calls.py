"""A program of plainer calls: one number instead of many, float32, SUM, the first member as root, tag 0.

The operations stay, as they are what a reader looks for. All calls change together first, then those of one name, so
that what agrees still does, then each alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ddpsim.simulator.calls import Shape
from ddpsim.simulator.operations import IN_PROGRAMS, Rows, Shapes
from ddpsim.simulator.programs.dtypes import DTYPES, REDUCTIONS
from ddpsim.simulator.programs.program import Issue, Program
from ddpsim.simulator.programs.validation import members_of
from ddpsim.simulator.shrinking.program_ranks import by_rank, changed
from ddpsim.simulator.shrinking.program_steps import names_of

Change = Callable[[Issue, tuple[int, ...]], Issue]
"""A call among the members of its group, made plainer; the same one if there is nothing to make plainer."""


def plainer_calls(program: Program) -> Iterator[Program]:
    """With all calls as plain as can be; then a change to the calls of each name, or to one of one rank."""
    yield _with(program, _plain)
    for name in names_of(program):
        yield _with(program, _plain, name=name)
        for change in _changes(program):
            yield _with(program, change, name=name)
    for rank in range(program.world_size):
        for name in names_of(program):
            for change in _changes(program):
                yield _with(program, change, name=name, rank=rank)


def _with(program: Program, change: Change, *, name: str | None = None, rank: int | None = None) -> Program:
    """The program with a change to all calls, or to those of a name or a rank only."""
    members = members_of(program)

    def change_one(call: Issue) -> Issue:
        return change(call, members[call.group]) if name in (None, call.name) else call

    return by_rank(program, lambda own, steps: changed(steps, change_one) if rank in (None, own) else steps)


def _changes(program: Program) -> Iterator[Change]:
    ranks = range(program.world_size)
    yield from (_plain_shapes, _fewer_shapes, _fewer_dimensions, _halved, _one_less)
    yield from (partial(_plain_shape, index=index) for index in ranks)
    yield from (partial(_plainer_split, side=side, index=index) for side in (0, 1) for index in ranks)
    options = {"dtype": DTYPES, "reduction": REDUCTIONS, "root": ranks, "tag": (0, 1)}
    yield from (partial(_with_option, key=key, value=value) for key, values in options.items() for value in values)


def _plain(call: Issue, members: tuple[int, ...]) -> Issue:
    call = _plain_shapes(call, members)
    for key, value in {"reduction": REDUCTIONS[0], "dtype": DTYPES[0], "root": members[0], "tag": 0}.items():
        call = _with_option(call, members, key=key, value=value)
    return call


# --- shapes -----------------------------------------------------------------------------------------------------------


def _plain_shapes(call: Issue, members: tuple[int, ...]) -> Issue:
    size = len(members)
    if call.splits is not None:
        return replace(call, splits=((1,) * size,) * 2, shapes=((size,),) * 2)
    if IN_PROGRAMS[call.operation].shapes is Shapes.PER_MEMBER:
        return replace(call, shapes=((1,),) * size)
    return replace(call, shapes=((_unit(call, members),),) if call.shapes else ())


def _fewer_shapes(call: Issue, members: tuple[int, ...]) -> Issue:
    several = IN_PROGRAMS[call.operation].shapes is Shapes.SEVERAL
    return replace(call, shapes=call.shapes[:-1]) if several and len(call.shapes) > 1 else call


def _fewer_dimensions(call: Issue, members: tuple[int, ...]) -> Issue:
    return _reshaped(call, lambda shape: shape[:-1] if len(shape) > 1 else shape)


def _halved(call: Issue, members: tuple[int, ...]) -> Issue:
    return _with_lengths(call, members, lambda length: max(length // 2, 1))


def _one_less(call: Issue, members: tuple[int, ...]) -> Issue:
    return _with_lengths(call, members, lambda length: max(length - 1, 1))


def _with_lengths(call: Issue, members: tuple[int, ...], smaller: Callable[[int], int]) -> Issue:
    """With smaller first lengths, which may have to be a multiple of the members; splits say theirs."""
    if call.splits is not None:
        return call
    unit = _unit(call, members)
    return _reshaped(call, lambda shape: (smaller(shape[0] // unit) * unit, *shape[1:]) if shape else shape)


def _reshaped(call: Issue, smaller: Callable[[Shape], Shape]) -> Issue:
    return replace(call, shapes=tuple(map(smaller, call.shapes)))


def _unit(call: Issue, members: tuple[int, ...]) -> int:
    return len(members) if IN_PROGRAMS[call.operation].rows is Rows.DIVISIBLE else 1


def _plain_shape(call: Issue, members: tuple[int, ...], *, index: int) -> Issue:
    """With one number in place of one of several shapes."""
    if len(call.shapes) < 2 or call.splits is not None:
        return call
    return replace(call, shapes=tuple((1,) if each == index else shape for each, shape in enumerate(call.shapes)))


def _plainer_split(call: Issue, members: tuple[int, ...], *, side: int, index: int) -> Issue:
    """With one row less for or from a member, or one where there is none."""
    if call.splits is None or index >= len(members) or call.splits[side][index] == 1:
        return call
    splits, shapes = list(call.splits), list(call.shapes)
    rows = splits[side][index]
    splits[side] = (*splits[side][:index], rows - 1 if rows else 1, *splits[side][index + 1 :])
    shapes[side] = (sum(splits[side]), *shapes[side][1:])
    return replace(call, splits=(splits[0], splits[1]), shapes=tuple(shapes))


def _with_option(call: Issue, members: tuple[int, ...], *, key: str, value: object) -> Issue:
    """With a plainer dtype, reduction, root or tag, if the call has one, and the root is a member."""
    is_no_member = key == "root" and value not in members
    if is_no_member or getattr(call, key) is None or (key == "tag" and value == 1 and call.tag == 0):
        return call
    changes: dict[str, Any] = {key: value}
    return replace(call, **changes)
