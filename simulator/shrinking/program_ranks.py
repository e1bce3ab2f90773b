"""A program on fewer ranks: removed ranks disappear from groups, shapes, splits, peers and roots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.operations import IN_PROGRAMS, Rows, Shapes
from ddpsim.simulator.programs.program import Group, Issue, Program, Step, Wait
from ddpsim.simulator.programs.validation import members_of
from ddpsim.simulator.shrinking.blocks import fewer_of


def fewer_ranks(program: Program) -> Iterator[Program]:
    """Remove a block of ranks; of few ranks, keep only two or three.

    A step that names a removed rank is left out, or names another rank instead.
    """
    for kept in fewer_of(range(program.world_size)):
        if kept:
            yield with_ranks(program, kept, stand_in=None)
            calls = [step for rank in kept for step in program.ranks[rank] if isinstance(step, Issue)]
            are_all_there = {rank for call in calls for rank in (call.peer, call.root)} <= {None, ANY_SOURCE, *kept}
            yield from (with_ranks(program, kept, stand_in=each) for each in (() if are_all_there else kept))


def with_ranks(program: Program, kept: Sequence[int], *, stand_in: int | None) -> Program:
    """Reduce a program to some of its ranks, in ascending order.

    If a peer or a root is removed, `stand_in` takes its place; if it is None, the message is left out, and the first
    member is the root.
    """
    members = members_of(program)
    number: dict[int | None, int] = {rank: index for index, rank in enumerate(sorted(kept))}

    def among(rank: int, step: Step) -> Step:
        if not isinstance(step, Issue):
            return step
        indices = [index for index, member in enumerate(members[step.group]) if member in number]
        peer, root = step.peer, step.root
        if peer not in (None, ANY_SOURCE):
            peer = number.get(peer, number.get(stand_in, number[rank]))  # nobody has a message for itself
        if root is not None:
            root = number.get(root, number.get(stand_in, -1))
        return _with_parts(replace(step, peer=peer, root=root), indices, len(members[step.group]))

    groups = [Group(each.name, tuple(number[rank] for rank in each.ranks if rank in number)) for each in program.groups]
    ranks = tuple(tuple(among(rank, step) for step in program.ranks[rank]) for rank in sorted(kept))
    return repaired(Program(len(number), tuple(group for group in groups if group.ranks), ranks))


def _with_parts(call: Issue, indices: Sequence[int], size: int) -> Issue:
    """The call with those of its parts, of which there is one for each member, that have these indices."""
    if call.splits is not None:
        sent, received = (tuple(side[index] for index in indices) for side in call.splits)
        return replace(call, splits=(sent, received))
    if IN_PROGRAMS[call.operation].shapes is Shapes.PER_MEMBER:
        return replace(call, shapes=tuple(call.shapes[index] for index in indices))
    if IN_PROGRAMS[call.operation].rows is Rows.DIVISIBLE:
        ((rows_of_all, *rest),) = call.shapes
        return replace(call, shapes=((rows_of_all // size * len(indices), *rest),))
    return call


def repaired(program: Program) -> Program:
    """Without groups that nobody uses, calls that a rank cannot make, and waits for those; and shapes that fit."""
    members = members_of(program)
    steps_of = [_repaired_steps(rank, steps, members) for rank, steps in enumerate(program.ranks)]
    used = {step.group for steps in steps_of for step in steps if isinstance(step, Issue)}
    groups = tuple(group for group in program.groups if group.name in used)
    return replace(program, groups=groups, ranks=tuple(steps_of))


def _repaired_steps(rank: int, steps: tuple[Step, ...], members: dict[str, tuple[int, ...]]) -> tuple[Step, ...]:
    found: list[Step] = []
    issued = set()
    for step in steps:
        if isinstance(step, Issue):
            own = members.get(step.group, ())
            others = {None, ANY_SOURCE, *own} - {rank}
            if rank not in own or step.peer not in others:
                continue
            issued.add(step.name)
            found.append(_fitted(step, own))
        elif not isinstance(step, Wait) or step.name in issued:
            found.append(step)
    return tuple(found)


def _fitted(call: Issue, members: tuple[int, ...]) -> Issue:
    """With a root that is a member, and as many rows as splits or members ask for."""
    shapes, size = call.shapes, len(members)
    root = call.root if call.root in (None, *members) else members[0]
    if call.splits is not None:
        shapes = tuple((sum(side), *shape[1:]) for side, shape in zip(call.splits, shapes, strict=False))
    elif IN_PROGRAMS[call.operation].rows is Rows.DIVISIBLE:
        shapes = tuple((ceil(rows / size) * size, *rest) for rows, *rest in filter(None, shapes))
    return call if (root, shapes) == (call.root, call.shapes) else replace(call, root=root, shapes=shapes)
