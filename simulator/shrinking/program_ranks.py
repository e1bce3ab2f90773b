"""A program on fewer ranks: who is gone is missing from groups, shapes and splits, and no other rank asks for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.operations import IN_PROGRAMS, Rows, Shapes
from ddpsim.simulator.programs.program import Group, Issue, Program, Step, Wait
from ddpsim.simulator.programs.validation import members_of
from ddpsim.simulator.shrinking.blocks import only_two_or_three, without_a_block


def fewer_ranks(program: Program) -> Iterator[Program]:
    """Without a block of ranks. What names one of them is left out, or names another rank instead."""
    for kept in without_a_block(range(program.world_size)):
        yield from _without(program, kept)


def two_or_three_ranks(program: Program) -> Iterator[Program]:
    """Of few ranks, only two or three."""
    for kept in only_two_or_three(range(program.world_size)):
        yield from _without(program, kept)


def _without(program: Program, kept: Collection[int]) -> Iterator[Program]:
    if not kept or len(kept) == program.world_size:
        return
    yield with_ranks(program, kept, stand_in=None)
    if _names_others(program, kept):
        for stand_in in kept:
            yield with_ranks(program, kept, stand_in=stand_in)


def _names_others(program: Program, kept: Collection[int]) -> bool:
    """True if a rank that stays has a message or a root among those that go."""
    calls = [step for rank in kept for step in program.ranks[rank] if isinstance(step, Issue)]
    named = {rank for call in calls for rank in (call.peer, call.root)}
    return not named <= {None, ANY_SOURCE, *kept}


def with_ranks(program: Program, kept: Collection[int], *, stand_in: int | None) -> Program:
    """The program of some of its ranks, in ascending order.

    Where a peer or a root is gone, `stand_in` takes its place; if it is None, the message is left out, and the first
    member is the root.
    """
    members = members_of(program)
    number = {rank: index for index, rank in enumerate(sorted(kept))}
    groups = [Group(each.name, tuple(number[rank] for rank in each.ranks if rank in number)) for each in program.groups]

    def among(rank: int, call: Issue) -> Issue | None:
        return call_among(call, rank, members[call.group], number, stand_in)

    return Program(
        len(number),
        tuple(group for group in groups if group.ranks),
        tuple(changed(program.ranks[rank], partial(among, rank)) for rank in number),
    )


def by_rank(program: Program, change: Callable[[int, tuple[Step, ...]], tuple[Step, ...]]) -> Program:
    """The program with other steps of each rank."""
    return replace(program, ranks=tuple(change(rank, steps) for rank, steps in enumerate(program.ranks)))


def changed(steps: Iterable[Step], change: Callable[[Issue], Issue | None]) -> tuple[Step, ...]:
    """The steps with other calls; what becomes None is left out, and the waits for it."""
    found: list[Step] = []
    gone = set()
    for step in steps:
        other = change(step) if isinstance(step, Issue) else step
        if isinstance(step, Issue) and other is None:
            gone.add(step.name)
        elif other is not None and not (isinstance(other, Wait) and other.name in gone):
            found.append(other)
    return tuple(found)


def call_among(
    call: Issue, rank: int, members: tuple[int, ...], number: dict[int, int], stand_in: int | None
) -> Issue | None:
    """A call among the ranks that have a number; None if its peer is gone."""
    peer, root = call.peer, call.root
    if peer is not None and peer != ANY_SOURCE:
        peer = peer if peer in number else stand_in
        if peer is None or peer == rank:
            return None
        peer = number[peer]
    if root is not None:
        first = next(member for member in members if member in number)
        root = number[root if root in number else first if stand_in is None else stand_in]
    indices = [index for index, member in enumerate(members) if member in number]
    return _with_parts(replace(call, peer=peer, root=root), indices, len(members))


def _with_parts(call: Issue, indices: Sequence[int], size: int) -> Issue:
    """The call with those of its parts, of which there is one for each member, that stand at some indices."""
    if call.splits is not None:
        sent, received = (tuple(side[index] for index in indices) for side in call.splits)
        rows = zip((sent, received), call.shapes, strict=True)
        return replace(call, splits=(sent, received), shapes=tuple((sum(side), *shape[1:]) for side, shape in rows))
    if IN_PROGRAMS[call.operation].shapes is Shapes.PER_MEMBER:
        return replace(call, shapes=tuple(call.shapes[index] for index in indices))
    if IN_PROGRAMS[call.operation].rows is Rows.DIVISIBLE:
        ((rows_of_all, *rest),) = call.shapes
        return replace(call, shapes=((rows_of_all // size * len(indices), *rest),))
    return call
