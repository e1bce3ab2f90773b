"""Draws programs in which nothing is wrong.

Note [No deadlock]. All that communicates is drawn in one order, and each rank issues its part of it in that order,
without waiting for more than what it has issued. Suppose ranks waited for good: among the calls they wait for, take the
first in that order. A rank that has not issued its side of it waits for an earlier one, which contradicts the choice.

A receive from any source has a tag of its own, so that only one message can be meant, and is not empty: gloo
refuses that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ddpsim.simulator.calls import ANY_SOURCE, Shape
from ddpsim.simulator.operations import IN_PROGRAMS, POINT_TO_POINT, Shapes
from ddpsim.simulator.programs.dtypes import DTYPES, reductions_of
from ddpsim.simulator.programs.program import Group, Issue, Program, Step, Wait
from ddpsim.simulator.programs.validation import members_of

COLLECTIVES = tuple(operation for operation in IN_PROGRAMS if operation not in POINT_TO_POINT)

WORLD_SIZES = (2, 4)
"""The smallest and the largest, unless told; 2 or more."""

_ROUNDS = (3, 9)
_MOST_GROUPS = 2
_MESSAGE_CHANCE = 0.25
_ANY_SOURCE_CHANCE = 0.3
_SYNC_CHANCE = 0.5
_LARGE_CHANCE = 0.05
_EMPTY_CHANCE = 0.04
_EARLY_WAIT_CHANCE = 0.3
_NEVER_CHANCE = 0.1

_LARGE: Shape = (3001,)
"""More than a backend moves in one piece."""
_FIRST_OWN_TAG = 100

Round = Mapping[int, Issue]
"""Calls that belong together, by rank."""


def draw(seed: int, world_sizes: tuple[int, int] = WORLD_SIZES) -> Program:
    """The program of a seed, on a number of ranks between the two given."""
    return drawn(Random(seed), world_sizes)


def drawn(random: Random, world_sizes: tuple[int, int]) -> Program:
    """The next program of a source of randomness."""
    world_size = random.randint(*world_sizes)
    groups = _groups(random, world_size)
    members = members_of(Program(world_size, groups, ()))
    rounds = [_round(random, number, members) for number in range(random.randint(*_ROUNDS))]
    return Program(world_size, groups, tuple(_steps(random, rounds, rank) for rank in range(world_size)))


def collective(random: Random, operation: str, name: str, group: str, members: Sequence[int]) -> Round:
    """Calls of an operation, that agree."""
    takes = IN_PROGRAMS[operation]
    dtype = random.choice(DTYPES) if takes.shapes is not Shapes.NONE else None
    reduction = random.choice(reductions_of(str(dtype))) if takes.reduces else None
    root = random.choice(members) if takes.has_root else None
    if takes.shapes is Shapes.IN_AND_OUT:
        return _exchange(random, name, group, members, str(dtype))
    shapes = _shapes(random, operation, len(members))
    issue = Issue(name, operation, group, shapes, dtype, reduction, root)
    return dict.fromkeys(members, issue)


# --- what communicates ------------------------------------------------------------------------------------------------


def _groups(random: Random, world_size: int) -> tuple[Group, ...]:
    count = random.randint(0, _MOST_GROUPS)
    sizes = [random.randint(2, world_size) for _ in range(count)]
    return tuple(
        Group(f"g{number}", tuple(sorted(random.sample(range(world_size), size))))
        for number, size in enumerate(sizes, start=1)
    )


def _round(random: Random, number: int, members: Mapping[str, Sequence[int]]) -> Round:
    group = random.choice(list(members))
    if random.random() < _MESSAGE_CHANCE:
        return _message(random, number, group, members[group])
    return collective(random, random.choice(COLLECTIVES), f"c{number}", group, members[group])


def _message(random: Random, number: int, group: str, members: Sequence[int]) -> Round:
    sender, receiver = random.sample(list(members), 2)
    is_from_any = random.random() < _ANY_SOURCE_CHANCE
    tag = _FIRST_OWN_TAG + number if is_from_any else random.choice((0, 0, 1))
    source = ANY_SOURCE if is_from_any else sender
    name, shape, dtype = f"c{number}", _shape(random), random.choice(DTYPES)
    shapes = ((),) if is_from_any and 0 in shape else (shape,)
    return {
        sender: Issue(name, "send", group, shapes, dtype, peer=receiver, tag=tag),
        receiver: Issue(name, "recv", group, shapes, dtype, peer=source, tag=tag),
    }


def _shapes(random: Random, operation: str, size: int) -> tuple[Shape, ...]:
    wanted = IN_PROGRAMS[operation].shapes
    if wanted is Shapes.NONE:
        return ()
    if wanted is Shapes.SEVERAL:
        return tuple(_shape(random) for _ in range(random.randint(1, 3)))
    if operation == "reduce_scatter_tensor":
        rows, *rest = _rows(random)
        return ((rows * size, *rest),)
    shape = _rows(random) if operation == "all_gather_into_tensor" else _shape(random)
    return (shape,) * (size if wanted is Shapes.PER_MEMBER else 1)


def _shape(random: Random) -> Shape:
    return _rows(random) if random.random() < 0.85 else ()


def _rows(random: Random) -> Shape:
    """A shape with at least one dimension."""
    chance = random.random()
    if chance < _LARGE_CHANCE:
        return _LARGE
    if chance < _LARGE_CHANCE + _EMPTY_CHANCE:
        return (0,)
    return tuple(random.randint(1, 5) for _ in range(random.randint(1, 2)))


def _exchange(random: Random, name: str, group: str, members: Sequence[int], dtype: str) -> Round:
    """An all_to_all_single with parts of all sizes; every rank sends something."""
    size, row = len(members), random.choice(((), (3,)))
    parts = [[random.randint(0, 3) for _ in members] for _ in members]
    for number in range(size):
        parts[number][(number + 1) % size] += 1
    received = [tuple(column) for column in zip(*parts, strict=True)]
    return {
        rank: Issue(
            name,
            "all_to_all_single",
            group,
            ((sum(own), *row), (sum(theirs), *row)),
            dtype,
            splits=(tuple(own), theirs),
        )
        for rank, own, theirs in zip(members, parts, received, strict=True)
    }


# --- what a rank does of it -------------------------------------------------------------------------------------------


def _steps(random: Random, rounds: Sequence[Round], rank: int) -> tuple[Step, ...]:
    """Its calls in order, each waited for at once, later in any order, or never."""
    steps: list[Step] = []
    pending: list[str] = []
    for issue in [calls[rank] for calls in rounds if rank in calls]:
        steps.append(issue)
        if random.random() < _SYNC_CHANCE:
            steps.append(Wait(issue.name))
        else:
            pending.append(issue.name)
        if pending and random.random() < _EARLY_WAIT_CHANCE:
            steps.append(Wait(pending.pop(random.randrange(len(pending)))))
    random.shuffle(pending)
    return (*steps, *(Wait(name) for name in pending if random.random() >= _NEVER_CHANCE))
