"""A program of fewer and smaller groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ddpsim.simulator.programs.program import DEFAULT, Group, Issue, Program
from ddpsim.simulator.shrinking.program_ranks import by_rank, call_among, changed
from ddpsim.simulator.shrinking.program_steps import without_names


def fewer_groups(program: Program) -> Iterator[Program]:
    """Without those that nobody uses; without one and its calls; or with its calls on the default or another group."""
    yield replace(program, groups=tuple(group for group in program.groups if _names_on(program, group)))
    for group in program.groups:
        yield _without(without_names(program, _names_on(program, group)), group)
        for name in (DEFAULT, *(other.name for other in program.groups if other is not group)):
            yield _without(_moved(program, group, name), group)


def smaller_groups(program: Program) -> Iterator[Program]:
    """Without one member of a group, which makes no calls on it then."""
    for group in program.groups:
        for member in group.ranks if len(group.ranks) > 1 else ():
            yield _without_member(program, group, member)


def _names_on(program: Program, group: Group) -> set[str]:
    calls = [step for steps in program.ranks for step in steps if isinstance(step, Issue)]
    return {call.name for call in calls if call.group == group.name}


def _without(program: Program, group: Group) -> Program:
    return replace(program, groups=tuple(each for each in program.groups if each.name != group.name))


def _moved(program: Program, group: Group, name: str) -> Program:
    def moved(call: Issue) -> Issue:
        return replace(call, group=name) if call.group == group.name else call

    return by_rank(program, lambda rank, steps: changed(steps, moved))


def _without_member(program: Program, group: Group, member: int) -> Program:
    kept = {rank: rank for rank in group.ranks if rank != member}

    def among(rank: int, call: Issue) -> Issue | None:
        if call.group != group.name:
            return call
        return call_among(call, rank, group.ranks, kept, None) if rank in kept else None

    smaller = Group(group.name, tuple(kept))
    others = replace(program, groups=tuple(smaller if each is group else each for each in program.groups))
    return by_rank(others, lambda rank, steps: changed(steps, partial(among, rank)))
