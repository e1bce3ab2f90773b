"""Break a correct program at one place of one rank, and say in which way.

The broken program may still pass: no rank may wait for the changed call, or two swapped calls may be equal. So the
caller determines the expected result.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

from ddpsim.scenarios.fuzzing.strategies.generator import (
    COLLECTIVES,
    RandomSource,
    choose_one,
    choose_several,
    draw_collective,
)
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.operations import IN_PROGRAMS, POINT_TO_POINT, RowRequirement, ShapeCount, SplitRule
from ddpsim.simulator.programs.program import DTYPES, CrashStep, Issue, Program, Return, Step, Wait, reductions_of_dtype
from ddpsim.simulator.programs.validation import members_of


class BreakKind(Enum):
    """The kind of fault that was put into a program. Reports list the kinds in this order."""

    NONE = "none"
    MISSING = "missing"
    """One call is left out."""
    EXTRA = "extra"
    """One call is repeated."""
    SWAPPED = "swapped"
    """Two consecutive calls are in the opposite order."""
    OPERATION = "operation"
    SHAPE = "shape"
    DTYPE = "dtype"
    REDUCTION = "reduction"
    ROOT = "root"
    SPLITS = "splits"
    GROUP = "group"
    PEER = "peer"
    TAG = "tag"
    EARLY_RETURN = "early return"
    CRASH = "crash"


_FOREIGN_TAG = 1000
"""A number that is added to a message's tag, to give a tag that no program uses."""


Steps = tuple[Step, ...]


def break_program(choices: RandomSource, program: Program, kind: BreakKind) -> tuple[Program, BreakKind, int] | None:
    """Return the program broken on one of its ranks, the kind of break, and the rank; None if this kind of break fits
    no rank."""
    for rank in choose_several(choices, range(program.world_size), program.world_size):
        issues = [step for step in program.ranks[rank] if isinstance(step, Issue)]
        steps = _BREAKS[kind](choices, program, rank, issues) if issues else None
        if steps is not None:
            ranks = (*program.ranks[:rank], steps, *program.ranks[rank + 1 :])
            return replace(program, ranks=ranks), kind, rank
    return None


def possible_breaks(program: Program) -> list[BreakKind]:
    """Return the kinds of break that are possible in the program."""
    return [kind for kind in _BREAKS if break_program(_FirstChoices(), program, kind) is not None]


class _FirstChoices:
    """A source of choices that always takes the first option."""

    def draw_integer(self, least: int, most: int) -> int:
        """Return the least number in the range."""
        return least


# --- breaks of the order: they return the rank's new steps, or None if the break does not fit -------------------------

Break = Callable[[RandomSource, Program, int, Sequence[Issue]], Steps | None]
"""The type of a function that breaks the steps of one rank. The last argument has the rank's calls, one or more."""


def _remove_call(choices: RandomSource, program: Program, rank: int, issues: Sequence[Issue]) -> Steps:
    name = choose_one(choices, issues).name
    return tuple(step for step in program.ranks[rank] if not (isinstance(step, (Issue, Wait)) and step.name == name))


def _repeat_call(choices: RandomSource, program: Program, rank: int, issues: Sequence[Issue]) -> Steps:
    steps = program.ranks[rank]
    again = replace(choose_one(choices, issues), name="extra")
    index = choices.draw_integer(0, len(steps))
    return (*steps[:index], again, Wait("extra"), *steps[index:])


def _swap_calls(choices: RandomSource, program: Program, rank: int, issues: Sequence[Issue]) -> Steps | None:
    """Swap two consecutive calls of a rank, together with the waits for them."""
    pairs = [(a, b) for a, b in pairwise(issues) if replace(a, name="") != replace(b, name="")]
    if not pairs:
        return None
    first, second = choose_one(choices, pairs)
    exchanged: dict[Step, Step] = {
        first: second,
        second: first,
        Wait(first.name): Wait(second.name),
        Wait(second.name): Wait(first.name),
    }
    return tuple(exchanged.get(step, step) for step in program.ranks[rank])


def _insert_exit(end: Step, choices: RandomSource, program: Program, rank: int, issues: Sequence[Issue]) -> Steps:
    steps = program.ranks[rank]
    index = steps.index(choose_one(choices, issues))
    return (*steps[:index], end, *steps[index:])


# --- breaks of one call -----------------------------------------------------------------------------------------------


Change = Callable[[RandomSource, Program, int, Issue], Issue | None]
"""The type of a function that changes one call of a rank. It returns None if the change does not fit the call."""


def _change_one_call(
    change: Change, choices: RandomSource, program: Program, rank: int, issues: Sequence[Issue]
) -> Steps | None:
    for issue in choose_several(choices, issues, len(issues)):
        other = change(choices, program, rank, issue)
        if other is not None:
            return tuple(other if step == issue else step for step in program.ranks[rank])
    return None


def _change_operation(choices: RandomSource, program: Program, rank: int, issue: Issue) -> Issue | None:
    if issue.operation in POINT_TO_POINT:
        other = "recv" if issue.operation == "send" else "send"
        return None if issue.peer == ANY_SOURCE else replace(issue, operation=other)
    members = members_of(program)[issue.group]
    operation = choose_one(choices, [each for each in COLLECTIVES if each != issue.operation])
    drawn_anew = draw_collective(choices, operation, issue.name, issue.group, members)[rank]
    return _copy_shape_and_dtype(drawn_anew, issue)


def _copy_shape_and_dtype(issue: Issue, model: Issue) -> Issue:
    """Return the call with the shape, dtype and reduction of `model`, if the call's operation has them. The error is
    then harder to detect."""
    one = {ShapeCount.ONE, ShapeCount.SEVERAL}
    if IN_PROGRAMS[issue.operation].shapes in one and IN_PROGRAMS[model.operation].shapes in one:
        if IN_PROGRAMS[issue.operation].rows is RowRequirement.ANY:
            issue = replace(issue, shapes=model.shapes[:1])
        if not issue.reduction or issue.reduction in reductions_of_dtype(str(model.dtype)):
            issue = replace(issue, dtype=model.dtype)
    return issue


def _change_shape(choices: RandomSource, program: Program, rank: int, issue: Issue) -> Issue | None:
    """Return the call with another number of elements, or the same number in another shape."""
    if not issue.shapes:
        return None
    if choose_one(choices, (False, False, True)) and any(prod(shape) > 1 for shape in issue.shapes):
        return replace(issue, shapes=tuple((*shape, 1) for shape in issue.shapes))
    row = IN_PROGRAMS[issue.operation]
    if row.splits is SplitRule.ROWS:
        wider = [(shape[0], 2 * (shape[1] if len(shape) > 1 else 1)) for shape in issue.shapes]
        return replace(issue, shapes=tuple(wider))
    rows = len(members_of(program)[issue.group]) if row.rows is RowRequirement.DIVISIBLE else 1
    return replace(issue, shapes=tuple((shape[0] + rows, *shape[1:]) if shape else (2,) for shape in issue.shapes))


def _change_value(field: str, choices: RandomSource, program: Program, rank: int, issue: Issue) -> Issue | None:
    """Return the call with another dtype, reduction, root or peer, if it has one."""
    members, own = members_of(program)[issue.group], getattr(issue, field)
    possible: dict[str, Sequence[Any]] = {
        "dtype": [each for each in DTYPES if issue.reduction in (None, *reductions_of_dtype(each))],
        "reduction": reductions_of_dtype(str(issue.dtype)),
        "root": members,
        "peer": [member for member in members if member != rank],
    }
    others = [each for each in possible[field] if each != own]
    if own is None or own == ANY_SOURCE or not others:
        return None
    return replace(issue, **{field: choose_one(choices, others)})


def _change_splits(choices: RandomSource, program: Program, rank: int, issue: Issue) -> Issue | None:
    """Change the splits of an all_to_all: send one row that was for one member to another member."""
    if issue.splits is None:
        return None
    parts = list(issue.splits[0])
    giver = choose_one(choices, [number for number, rows in enumerate(parts) if rows])
    taker = choose_one(choices, [number for number in range(len(parts)) if number != giver])
    parts[giver] -= 1
    parts[taker] += 1
    return replace(issue, splits=(tuple(parts), issue.splits[1]))


def _change_group(choices: RandomSource, program: Program, rank: int, issue: Issue) -> Issue | None:
    """Move the call to another group of the rank. If the call has a value per member, the other group has the same
    size."""
    members = members_of(program)
    own = members[issue.group]
    per_member = IN_PROGRAMS[issue.operation].shapes in (ShapeCount.PER_MEMBER, ShapeCount.IN_AND_OUT)
    needs_size = per_member or IN_PROGRAMS[issue.operation].rows is RowRequirement.DIVISIBLE
    needed = {rank, *(each for each in (issue.root, issue.peer) if each is not None and each != ANY_SOURCE)}
    others = [
        name
        for name, ranks in members.items()
        if name != issue.group and needed <= set(ranks) and (len(ranks) == len(own) or not needs_size)
    ]
    return replace(issue, group=choose_one(choices, others)) if others else None


def _change_tag(choices: RandomSource, program: Program, rank: int, issue: Issue) -> Issue | None:
    return None if issue.peer is None else replace(issue, tag=issue.tag + _FOREIGN_TAG)


_BREAKS: dict[BreakKind, Break] = {
    BreakKind.MISSING: _remove_call,
    BreakKind.EXTRA: _repeat_call,
    BreakKind.SWAPPED: _swap_calls,
    BreakKind.OPERATION: partial(_change_one_call, _change_operation),
    BreakKind.SHAPE: partial(_change_one_call, _change_shape),
    BreakKind.DTYPE: partial(_change_one_call, partial(_change_value, "dtype")),
    BreakKind.REDUCTION: partial(_change_one_call, partial(_change_value, "reduction")),
    BreakKind.ROOT: partial(_change_one_call, partial(_change_value, "root")),
    BreakKind.SPLITS: partial(_change_one_call, _change_splits),
    BreakKind.GROUP: partial(_change_one_call, _change_group),
    BreakKind.PEER: partial(_change_one_call, partial(_change_value, "peer")),
    BreakKind.TAG: partial(_change_one_call, _change_tag),
    BreakKind.EARLY_RETURN: partial(_insert_exit, Return()),
    BreakKind.CRASH: partial(_insert_exit, CrashStep()),
}
