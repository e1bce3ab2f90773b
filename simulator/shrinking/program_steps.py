"""A program of fewer steps: without calls of one name on all ranks, without calls or single steps of one rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations

from ddpsim.simulator.programs.program import Issue, Program, Step, Wait
from ddpsim.simulator.shrinking.blocks import blocks, without_a_block
from ddpsim.simulator.shrinking.program_ranks import by_rank

_FEW_NAMES = 12
_FEW_STEPS = 14
"""Of so few, every two are left out together: none of them need be superfluous alone."""

Steps = tuple[Step, ...]
Location = tuple[int, int]
"""A rank, and the number of one of its steps."""


def fewer_rounds(program: Program) -> Iterator[Program]:
    """Without a block of calls, on all ranks; those of one name belong together."""
    names = names_of(program)
    for kept in without_a_block(names):
        yield without_names(program, {*names}.difference(kept))


def idle_ranks(program: Program) -> Iterator[Program]:
    """Without what one rank does."""
    for rank, steps in enumerate(program.ranks):
        if steps:
            yield replace(program, ranks=(*program.ranks[:rank], (), *program.ranks[rank + 1 :]))


def fewer_steps(program: Program) -> Iterator[Program]:
    """Without a block of the steps of one rank; a wait goes with its call."""
    for rank, steps in enumerate(program.ranks):
        for block in blocks(len(steps)):
            yield _without_indices(program, {(rank, index) for index in block})


def fewer_rounds_in_pairs(program: Program) -> Iterator[Program]:
    """Of few names, without any two."""
    names = names_of(program)
    for pair in combinations(names, 2) if len(names) <= _FEW_NAMES else ():
        yield without_names(program, pair)


def fewer_steps_in_pairs(program: Program) -> Iterator[Program]:
    """Of few steps, without any two."""
    indices = [(rank, index) for rank, steps in enumerate(program.ranks) for index in range(len(steps))]
    for pair in combinations(indices, 2) if len(indices) <= _FEW_STEPS else ():
        yield _without_indices(program, pair)


def synchronous(program: Program) -> Iterator[Program]:
    """With waits directly behind their calls: all of them, those of one name, or one."""
    ranks, names = range(program.world_size), names_of(program)
    yield _synchronous(program, ranks, names)
    for name in names:
        yield _synchronous(program, ranks, [name])
    for rank in ranks:
        for name in names:
            yield _synchronous(program, [rank], [name])


def without_names(program: Program, names: Collection[str]) -> Program:
    """The program without the calls of these names, and their waits."""

    def is_left(step: Step) -> bool:
        return not (isinstance(step, (Issue, Wait)) and step.name in names)

    return by_rank(program, lambda rank, steps: tuple(filter(is_left, steps)))


def names_of(program: Program) -> tuple[str, ...]:
    """The names of its calls, in the order in which they are met from rank to rank."""
    return tuple(dict.fromkeys(step.name for steps in program.ranks for step in steps if isinstance(step, Issue)))


def _without_indices(program: Program, indices: Collection[Location]) -> Program:
    """A wait goes with its call."""

    def left(rank: int, steps: Steps) -> Steps:
        gone = {step.name for own, index in indices if own == rank and isinstance(step := steps[index], Issue)}
        return tuple(
            step
            for index, step in enumerate(steps)
            if (rank, index) not in indices and not (isinstance(step, Wait) and step.name in gone)
        )

    return by_rank(program, left)


def _synchronous(program: Program, ranks: Collection[int], names: Collection[str]) -> Program:
    return by_rank(program, lambda rank, steps: _waited_at_once(steps, names) if rank in ranks else steps)


def _waited_at_once(steps: Steps, names: Collection[str]) -> Steps:
    waited = {step.name for step in steps if isinstance(step, Wait)} & set(names)
    found: list[Step] = []
    for step in steps:
        if not (isinstance(step, Wait) and step.name in waited):
            found.append(step)
        if isinstance(step, Issue) and step.name in waited:
            found.append(Wait(step.name))
    return tuple(found)
