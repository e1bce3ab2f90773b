"""How large a program is, and how far each of its calls is from a plain one."""

from __future__ import annotations

from math import prod

from ddpsim.simulator.calls import Shape
from ddpsim.simulator.operations import IN_PROGRAMS, Rows, Splits
from ddpsim.simulator.programs.dtypes import DTYPES, REDUCTIONS
from ddpsim.simulator.programs.program import DEFAULT, Issue, Program, Step, Wait
from ddpsim.simulator.programs.validation import members_of
from ddpsim.simulator.shrinking.size import Size


def size_of(program: Program) -> Size:
    """The size of a program; its schedule is none of it."""
    members = members_of(program)
    calls = [step for steps in program.ranks for step in steps if isinstance(step, Issue)]
    return Size(
        program.world_size,
        sum(len(steps) for steps in program.ranks),
        len(calls),
        len(program.groups),
        sum(_shapes_weight(call, len(members[call.group])) for call in calls)
        + sum(len(group.ranks) for group in program.groups),
        sum(_options_weight(call, members[call.group]) for call in calls)
        + sum(_late_waits(steps) for steps in program.ranks),
    )


def _shapes_weight(call: Issue, size: int) -> int:
    """0 for one number, or one for each member where there has to be one."""
    row = IN_PROGRAMS[call.operation]
    unit = size if row.rows is Rows.DIVISIBLE or row.splits is Splits.ROWS else 1
    parts = [part for side in call.splits or () for part in side]
    return sum(_weight(shape, unit) for shape in call.shapes) + len(call.shapes) + sum(abs(part - 1) for part in parts)


def _weight(shape: Shape, unit: int) -> int:
    return 2 * abs(prod(shape) - unit) + abs(len(shape) - 1)


def _options_weight(call: Issue, members: tuple[int, ...]) -> int:
    return (
        (0 if call.dtype is None else DTYPES.index(call.dtype))
        + (0 if call.reduction is None else REDUCTIONS.index(call.reduction))
        + (0 if call.root is None else members.index(call.root))
        + call.tag
        + (call.group != DEFAULT)
    )


def _late_waits(steps: tuple[Step, ...]) -> int:
    """How many waits do not follow their call at once."""
    before = (None, *steps)
    return sum(
        isinstance(step, Wait) and not (isinstance(previous, Issue) and previous.name == step.name)
        for previous, step in zip(before, steps, strict=False)
    )
