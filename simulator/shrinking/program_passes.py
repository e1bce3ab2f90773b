"""All passes that make a program simpler, in the order in which they run, and the size of a program.

Most passes work on any structure (structure.py). The passes here know more about programs: steps name ranks by number,
calls with the same name on several ranks belong together, and a wait belongs to its call.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import ceil

from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import IN_PROGRAMS, RowRequirement, ShapeCount
from ddpsim.simulator.programs.program import DEFAULT, DTYPES, REDUCTIONS, Group, Issue, Program, Step, Wait
from ddpsim.simulator.programs.validation import members_of, validate_program
from ddpsim.simulator.shrinking.greedy import FailureSize
from ddpsim.simulator.shrinking.structure import StructureShrinker, with_fewer_values, without_one_block

STRUCTURE = StructureShrinker(
    {
        Program: {"groups": (), "ranks": ()},
        Group: {"ranks": ()},
        Issue: {
            **{"group": (DEFAULT,), "dtype": DTYPES, "reduction": REDUCTIONS},
            **{"shapes": 1, "splits": 1, "root": 0, "tag": 0},
        },
    }
)
"""By type of step, the fields that may change. Names, operations and peers stay: by them a reader knows the program."""


def size_of_program(program: Program) -> FailureSize:
    """Return the size of a program without its schedule."""
    calls = [step for steps in program.ranks for step in steps if isinstance(step, Issue)]
    rows_of_splits = sum(sum(map(sum, call.splits or ())) for call in calls)  # the shapes count them, too
    return FailureSize(
        program.world_size,
        sum(map(len, program.ranks)),
        len(calls),
        len(program.groups),
        STRUCTURE.distance_of_numbers(program) - rows_of_splits + sum(len(group.ranks) for group in program.groups),
        STRUCTURE.distance_of_words(program) + sum(map(_count_late_waits, program.ranks)),
    )


def _count_late_waits(steps: tuple[Step, ...]) -> int:
    """Return how many waits do not directly follow their call."""
    before = (None, *steps)
    return sum(
        isinstance(step, Wait) and not (isinstance(previous, Issue) and previous.name == step.name)
        for previous, step in zip(before, steps, strict=False)
    )


_FEW_NAMES = 12
_FEW_STEPS = 14
"""With at most this many steps, every pair of steps is also removed together: maybe neither can be removed alone."""


def remove_rounds(program: Program) -> Iterator[Program]:
    """Yield programs without a block of calls on all ranks; calls with the same name belong together."""
    names = _call_names(program)
    for kept in without_one_block(names):
        yield _without_names(program, {*names}.difference(kept))


def remove_pairs_of_rounds(program: Program) -> Iterator[Program]:
    """Yield programs without the calls of two names, if there are few names."""
    names = _call_names(program)
    for pair in combinations(names, 2) if len(names) <= _FEW_NAMES else ():
        yield _without_names(program, pair)


def remove_pairs_of_steps(program: Program) -> Iterator[Program]:
    """Yield programs without two of the steps, if there are few steps."""
    places = [(rank, index) for rank, steps in enumerate(program.ranks) for index in range(len(steps))]
    for pair in combinations(places, 2) if len(places) <= _FEW_STEPS else ():
        yield _keep_steps(program, lambda rank, index, step, pair=pair: (rank, index) not in pair)  # type: ignore[misc]


def move_calls_to_other_group(program: Program) -> Iterator[Program]:
    """Yield programs in which the calls of one group are moved to the default group or another group."""
    for group in program.groups:
        others = tuple(other for other in program.groups if other is not group)
        for name in (DEFAULT, *(other.name for other in others)):
            ranks = tuple(tuple(_move_to_group(step, group, name) for step in steps) for steps in program.ranks)
            yield replace(program, groups=others, ranks=ranks)


def _call_names(program: Program) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.name for steps in program.ranks for step in steps if isinstance(step, Issue)))


def _without_names(program: Program, names: Collection[str]) -> Program:
    return _keep_steps(program, lambda rank, index, step: not (isinstance(step, Issue) and step.name in names))


def _keep_steps(program: Program, is_kept: Callable[[int, int, Step], bool]) -> Program:
    ranks = tuple(
        tuple(step for index, step in enumerate(steps) if is_kept(rank, index, step))
        for rank, steps in enumerate(program.ranks)
    )
    return replace(program, ranks=ranks)


def _move_to_group(step: Step, group: Group, name: str) -> Step:
    return replace(step, group=name) if isinstance(step, Issue) and step.group == group.name else step


def _only_valid_programs(shrink_pass: Callable[[Program], Iterator[Program]]) -> Callable[[Program], Iterator[Program]]:
    """Wrap a pass, so that its programs are repaired, and those that ranks could not run are left out."""

    def valid_results(program: Program) -> Iterator[Program]:
        for simpler in map(repair_program, shrink_pass(program)):
            if simpler != program and _is_valid_program(simpler):
                yield simpler

    return valid_results


def _is_valid_program(program: Program) -> bool:
    try:
        validate_program(program)
    except UsageError:
        return False
    return True


def remove_ranks(program: Program) -> Iterator[Program]:
    """Yield programs without a block of ranks; of few ranks, keep only two or three. A step that names a removed rank
    is left out, or names another rank instead."""
    for kept in with_fewer_values(range(program.world_size)):
        if kept:
            yield reduce_to_ranks(program, kept, stand_in=None)
            calls = [step for rank in kept for step in program.ranks[rank] if isinstance(step, Issue)]
            are_all_there = {rank for call in calls for rank in (call.peer, call.root)} <= {None, ANY_SOURCE, *kept}
            yield from (reduce_to_ranks(program, kept, stand_in=each) for each in (() if are_all_there else kept))


def reduce_to_ranks(program: Program, kept: Sequence[int], *, stand_in: int | None) -> Program:
    """Reduce a program to some of its ranks, in ascending order. `stand_in` replaces a removed peer or root.

    If it is None, a message to the peer is left out, and the first member becomes the root.
    """
    members = members_of(program)
    number: dict[int | None, int] = {rank: index for index, rank in enumerate(sorted(kept))}

    def restrict_step_to_ranks(rank: int, step: Step) -> Step:
        if not isinstance(step, Issue):
            return step
        indices = [index for index, member in enumerate(members[step.group]) if member in number]
        peer, root = step.peer, step.root
        if peer not in (None, ANY_SOURCE):
            peer = number.get(peer, number.get(stand_in, number[rank]))  # its own number: the message is left out
        if root is not None:
            root = number.get(root, number.get(stand_in, -1))
        return _restrict_call_to_members(replace(step, peer=peer, root=root), indices, len(members[step.group]))

    groups = [Group(each.name, tuple(number[rank] for rank in each.ranks if rank in number)) for each in program.groups]
    ranks = tuple(tuple(restrict_step_to_ranks(rank, step) for step in program.ranks[rank]) for rank in sorted(kept))
    return repair_program(Program(len(number), tuple(group for group in groups if group.ranks), ranks))


def _restrict_call_to_members(call: Issue, indices: Sequence[int], size: int) -> Issue:
    """Return a call whose splits, shapes or rows are reduced to the group members with these indices."""
    if call.splits is not None:
        sent, received = (tuple(side[index] for index in indices) for side in call.splits)
        return replace(call, splits=(sent, received))
    if IN_PROGRAMS[call.operation].shapes is ShapeCount.PER_MEMBER:
        return replace(call, shapes=tuple(call.shapes[index] for index in indices))
    if IN_PROGRAMS[call.operation].rows is RowRequirement.DIVISIBLE:
        ((rows_of_all, *rest),) = call.shapes
        return replace(call, shapes=((rows_of_all // size * len(indices), *rest),))
    return call


def repair_program(program: Program) -> Program:
    """Remove unused groups, calls that a rank cannot make and the waits for these calls, and make shapes fit."""
    members = members_of(program)
    steps_of = [_repair_steps(rank, steps, members) for rank, steps in enumerate(program.ranks)]
    used = {step.group for steps in steps_of for step in steps if isinstance(step, Issue)}
    groups = tuple(group for group in program.groups if group.name in used)
    return replace(program, groups=groups, ranks=tuple(steps_of))


def _repair_steps(rank: int, steps: tuple[Step, ...], members: dict[str, tuple[int, ...]]) -> tuple[Step, ...]:
    found: list[Step] = []
    issued = set()
    for step in steps:
        if isinstance(step, Issue):
            own = members.get(step.group, ())
            others = {None, ANY_SOURCE, *own} - {rank}
            if rank not in own or step.peer not in others:
                continue
            issued.add(step.name)
            found.append(_fit_shapes_and_root(step, own))
        elif not isinstance(step, Wait) or step.name in issued:
            found.append(step)
    return tuple(found)


def _fit_shapes_and_root(call: Issue, members: tuple[int, ...]) -> Issue:
    """Return a call whose root is a member, and whose tensors have as many rows as the splits or members need."""
    shapes, size = call.shapes, len(members)
    root = call.root if call.root in (None, *members) else members[0]
    if call.splits is not None:
        shapes = tuple((sum(side), *shape[1:]) for side, shape in zip(call.splits, shapes, strict=False))
    elif IN_PROGRAMS[call.operation].rows is RowRequirement.DIVISIBLE:
        shapes = tuple((ceil(rows / size) * size, *rest) for rows, *rest in filter(None, shapes))
    return call if (root, shapes) == (call.root, call.shapes) else replace(call, root=root, shapes=shapes)


_PASSES: tuple[Callable[[Program], Iterator[Program]], ...] = (
    remove_ranks,
    remove_rounds,
    STRUCTURE.with_fewer_elements,
    remove_pairs_of_rounds,
    remove_pairs_of_steps,
    move_calls_to_other_group,
    STRUCTURE.with_equal_parts_changed,
    STRUCTURE.with_plainer_leaf,
    STRUCTURE.with_element_moved_forward,
)

PASSES = tuple(map(_only_valid_programs, _PASSES))
"""The passes for programs, in the order in which they run; they yield valid programs only."""
