"""All passes that make a program simpler, in the order in which they run.

Most are those of any structure. What is left here is what a structure does not show: ranks are numbers that steps name,
calls of one name belong together on all ranks, and a wait belongs to its call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import combinations

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.program import DEFAULT, Group, Issue, Program, Step
from ddpsim.simulator.programs.validation import validate
from ddpsim.simulator.shrinking.blocks import without_a_block
from ddpsim.simulator.shrinking.program_ranks import fewer_ranks, repaired
from ddpsim.simulator.shrinking.program_size import STRUCTURE

_FEW_NAMES = 12
_FEW_STEPS = 14
"""Of so few, every two are left out together: none of them need be superfluous alone."""


def fewer_rounds(program: Program) -> Iterator[Program]:
    """Without a block of calls, on all ranks; those of one name belong together."""
    names = _names_of(program)
    for kept in without_a_block(names):
        yield _without_names(program, {*names}.difference(kept))


def fewer_rounds_in_pairs(program: Program) -> Iterator[Program]:
    """Of few names, without any two."""
    names = _names_of(program)
    for pair in combinations(names, 2) if len(names) <= _FEW_NAMES else ():
        yield _without_names(program, pair)


def fewer_steps_in_pairs(program: Program) -> Iterator[Program]:
    """Of few steps, without any two."""
    places = [(rank, index) for rank, steps in enumerate(program.ranks) for index in range(len(steps))]
    for pair in combinations(places, 2) if len(places) <= _FEW_STEPS else ():
        yield _kept(program, lambda rank, index, step, pair=pair: (rank, index) not in pair)  # type: ignore[misc]


def other_groups(program: Program) -> Iterator[Program]:
    """Move the calls of a group to the default group or another one."""
    for group in program.groups:
        others = tuple(other for other in program.groups if other is not group)
        for name in (DEFAULT, *(other.name for other in others)):
            ranks = tuple(tuple(_moved(step, group, name) for step in steps) for steps in program.ranks)
            yield replace(program, groups=others, ranks=ranks)


def _names_of(program: Program) -> tuple[str, ...]:
    """The names of its calls, in the order in which they are met from rank to rank."""
    return tuple(dict.fromkeys(step.name for steps in program.ranks for step in steps if isinstance(step, Issue)))


def _without_names(program: Program, names: Collection[str]) -> Program:
    return _kept(program, lambda rank, index, step: not (isinstance(step, Issue) and step.name in names))


def _kept(program: Program, is_kept: Callable[[int, int, Step], bool]) -> Program:
    ranks = tuple(
        tuple(step for index, step in enumerate(steps) if is_kept(rank, index, step))
        for rank, steps in enumerate(program.ranks)
    )
    return replace(program, ranks=ranks)


def _moved(step: Step, group: Group, name: str) -> Step:
    return replace(step, group=name) if isinstance(step, Issue) and step.group == group.name else step


def _valid(shrink_pass: Callable[[Program], Iterator[Program]]) -> Callable[[Program], Iterator[Program]]:
    """What a pass gives, repaired, and without what ranks could not run."""

    def valid(program: Program) -> Iterator[Program]:
        for simpler in map(repaired, shrink_pass(program)):
            if simpler != program and _is_valid(simpler):
                yield simpler

    return valid


def _is_valid(program: Program) -> bool:
    try:
        validate(program)
    except UsageError:
        return False
    return True


_PASSES: tuple[Callable[[Program], Iterator[Program]], ...] = (
    fewer_ranks,
    fewer_rounds,
    STRUCTURE.fewer,
    fewer_rounds_in_pairs,
    fewer_steps_in_pairs,
    other_groups,
    STRUCTURE.alike,
    STRUCTURE.plainer,
    STRUCTURE.earlier,
)

PASSES = tuple(map(_valid, _PASSES))
"""Each gives valid programs only."""
