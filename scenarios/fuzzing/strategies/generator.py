"""The only generator of correct programs. Its choices come from a `RandomSource`: a seed, or hypothesis.

Note [No deadlock]. All communication is drawn in one global order. Each rank issues its calls in that order, and waits
only for calls that it has issued. Suppose ranks waited forever: take the first call in that order that any of them
waits for. A rank that has not issued its side of this call must wait for an earlier call, but there is none.

A receive from any source has a tag that no other message has, so that only one message matches. The message is not
empty, because gloo refuses an empty one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from ddpsim.simulator.calls import ANY_SOURCE, Shape
from ddpsim.simulator.operations import IN_PROGRAMS, POINT_TO_POINT, RowRequirement, ShapeCount
from ddpsim.simulator.programs.program import DTYPES, Group, Issue, Program, Step, Wait, reductions_of_dtype
from ddpsim.simulator.programs.validation import members_of

COLLECTIVES = tuple(operation for operation in IN_PROGRAMS if operation not in POINT_TO_POINT)

_MOST_GROUPS = 2
_LARGE_SHAPE: Shape = (3001,)
"""A shape with more elements than a backend moves in one piece."""
_FIRST_OWN_TAG = 100
_NEVER = -1
_DELAYS = (0, 0, 0, 1, 2, 3, _NEVER)
"""The possible delays: how many more calls a rank issues before it waits for a call. -1 means that it never waits."""

Round = Mapping[int, Issue]
"""The calls of one collective or one message, by rank."""

Option = TypeVar("Option")


class RandomSource(Protocol):
    """The source of all random choices: a seed, or hypothesis, which can shrink the choices."""

    def draw_integer(self, least: int, most: int) -> int:
        """Return a number in this range. The least number counts as the simplest when a failure is shrunk."""


class ProgramExtent(NamedTuple):
    """The least and the largest numbers of ranks, and of rounds (collectives or messages), in a drawn program."""

    ranks: tuple[int, int] = (2, 4)
    rounds: tuple[int, int] = (0, 8)


def choose_one(choices: RandomSource, options: Sequence[Option]) -> Option:
    """Return one of some options. The first option counts as the simplest when a failure is shrunk."""
    return options[choices.draw_integer(0, len(options) - 1)]


def choose_several(choices: RandomSource, options: Sequence[Option], count: int) -> list[Option]:
    """Return `count` different options, in any order."""
    left = list(options)
    return [left.pop(choices.draw_integer(0, len(left) - 1)) for _ in range(count)]


def draw_program(choices: RandomSource, extent: ProgramExtent) -> Program:
    """Return a random correct program."""
    world_size = choices.draw_integer(*extent.ranks)
    groups = _draw_groups(choices, world_size)
    members = members_of(Program(world_size, groups, ()))
    rounds = [_draw_round(choices, number, members) for number in range(choices.draw_integer(*extent.rounds))]
    return Program(world_size, groups, tuple(_steps_of_rank(choices, rounds, rank) for rank in range(world_size)))


def draw_collective(choices: RandomSource, operation: str, name: str, group: str, members: Sequence[int]) -> Round:
    """Return a call for each member of the group; the calls match each other."""
    takes = IN_PROGRAMS[operation]
    dtype = choose_one(choices, DTYPES) if takes.shapes is not ShapeCount.NONE else None
    if takes.shapes is ShapeCount.IN_AND_OUT:
        return _draw_all_to_all(choices, Issue(name, operation, group, dtype=dtype), members)
    shapes = _draw_shapes(choices, operation, len(members))
    reduction = choose_one(choices, reductions_of_dtype(str(dtype))) if takes.reduces else None
    root = choose_one(choices, members) if takes.has_root else None
    return dict.fromkeys(members, Issue(name, operation, group, shapes, dtype, reduction, root))


def _draw_groups(choices: RandomSource, world_size: int) -> tuple[Group, ...]:
    sizes = [choices.draw_integer(min(2, world_size), world_size) for _ in range(choices.draw_integer(0, _MOST_GROUPS))]
    return tuple(
        Group(f"g{number}", tuple(sorted(choose_several(choices, range(world_size), size))))
        for number, size in enumerate(sizes, start=1)
    )


def _draw_round(choices: RandomSource, number: int, members: Mapping[str, Sequence[int]]) -> Round:
    group = choose_one(choices, list(members))
    ranks = members[group]
    if choose_one(choices, (False, False, False, True)) and len(ranks) > 1:
        return _draw_message(choices, number, group, ranks)
    return draw_collective(choices, choose_one(choices, COLLECTIVES), f"c{number}", group, ranks)


def _draw_message(choices: RandomSource, number: int, group: str, members: Sequence[int]) -> Round:
    sender, receiver = choose_several(choices, members, 2)
    is_from_any = choose_one(choices, (False, False, True))
    tag = _FIRST_OWN_TAG + number if is_from_any else choose_one(choices, (0, 0, 1))
    source = ANY_SOURCE if is_from_any else sender
    name, shape, dtype = f"c{number}", _draw_shape(choices), choose_one(choices, DTYPES)
    shapes = ((),) if is_from_any and 0 in shape else (shape,)
    return {
        sender: Issue(name, "send", group, shapes, dtype, peer=receiver, tag=tag),
        receiver: Issue(name, "recv", group, shapes, dtype, peer=source, tag=tag),
    }


def _draw_all_to_all(choices: RandomSource, plain: Issue, members: Sequence[int]) -> Round:
    """Return all_to_all calls whose splits may differ, even be 0; every rank sends at least one row."""
    size, row = len(members), choose_one(choices, ((), (3,)))
    parts = [[choices.draw_integer(0, 3) for _ in members] for _ in members]
    for number in range(size):
        parts[number][(number + 1) % size] += 1
    received = [tuple(column) for column in zip(*parts, strict=True)]
    return {
        rank: replace(plain, shapes=((sum(own), *row), (sum(theirs), *row)), splits=(tuple(own), theirs))
        for rank, own, theirs in zip(members, parts, received, strict=True)
    }


def _draw_shapes(choices: RandomSource, operation: str, size: int) -> tuple[Shape, ...]:
    wanted, rows = IN_PROGRAMS[operation].shapes, IN_PROGRAMS[operation].rows
    if wanted is ShapeCount.NONE:
        return ()
    if wanted is ShapeCount.SEVERAL:
        return tuple(_draw_shape(choices) for _ in range(choices.draw_integer(1, 3)))
    shape = _draw_shape(choices, has_rows=rows is not RowRequirement.ANY)
    if rows is RowRequirement.DIVISIBLE:
        shape = (shape[0] * size, *shape[1:])
    return (shape,) * (size if wanted is ShapeCount.PER_MEMBER else 1)


def _draw_shape(choices: RandomSource, *, has_rows: bool = False) -> Shape:
    """Return a shape: mostly small, seldom a scalar, an empty shape or a large shape."""
    lengths = tuple(choices.draw_integer(1, 5) for _ in range(choices.draw_integer(1, 2)))
    kind = choices.draw_integer(0, 29)  # drawn after the lengths, so that hypothesis does not prefer a scalar
    if kind == 29:
        return _LARGE_SHAPE
    if kind == 28:
        return (0,)
    return () if kind > 23 and not has_rows else lengths


def _steps_of_rank(choices: RandomSource, rounds: Sequence[Round], rank: int) -> tuple[Step, ...]:
    """Return the rank's calls in order, with its waits. A rank waits for a call at once, some calls later, or never."""
    own = [calls[rank] for calls in rounds if rank in calls]
    due: dict[int, list[Step]] = {}
    for number, issue in enumerate(own):
        delay = choose_one(choices, _DELAYS)
        if delay != _NEVER:
            due.setdefault(number + delay, []).append(Wait(issue.name))
    steps: list[Step] = []
    for number, issue in enumerate(own):
        steps += [issue, *due.pop(number, ())]
    return (*steps, *(wait for number in sorted(due) for wait in due[number]))
