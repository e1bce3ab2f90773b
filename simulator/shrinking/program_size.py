"""Measures the size of a program, and defines which values are plain."""

from __future__ import annotations

from ddpsim.simulator.programs.dtypes import DTYPES, REDUCTIONS
from ddpsim.simulator.programs.program import DEFAULT, Group, Issue, Program, Step, Wait
from ddpsim.simulator.shrinking.size import Size
from ddpsim.simulator.shrinking.structure import Structure

STRUCTURE = Structure(
    {
        Program: {"groups": (), "ranks": ()},
        Group: {"ranks": ()},
        Issue: {
            **{"group": (DEFAULT,), "dtype": DTYPES, "reduction": REDUCTIONS},
            **{"shapes": 1, "splits": 1, "root": 0, "tag": 0},
        },
    }
)
"""Names, operations and peers stay: they are what a reader looks for."""


def size_of(program: Program) -> Size:
    """The size of a program; its schedule is none of it."""
    calls = [step for steps in program.ranks for step in steps if isinstance(step, Issue)]
    rows_of_splits = sum(sum(map(sum, call.splits or ())) for call in calls)  # the shapes say them, too
    return Size(
        program.world_size,
        sum(map(len, program.ranks)),
        len(calls),
        len(program.groups),
        STRUCTURE.numbers(program) - rows_of_splits + sum(len(group.ranks) for group in program.groups),
        STRUCTURE.words(program) + sum(map(_late_waits, program.ranks)),
    )


def _late_waits(steps: tuple[Step, ...]) -> int:
    """Count the waits that do not follow their call at once."""
    before = (None, *steps)
    return sum(
        isinstance(step, Wait) and not (isinstance(previous, Issue) and previous.name == step.name)
        for previous, step in zip(before, steps, strict=False)
    )
