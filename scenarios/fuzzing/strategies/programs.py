"""Hypothesis strategies of programs, each a list of communication calls per rank: correct, or broken in one place.

generator.py makes the programs. Hypothesis makes each choice, so it can shrink a failure to few ranks, few rounds and
simple calls that are waited for at once.

A program is broken at one place of one rank, and it is said in which way. The broken program may still pass: no rank
may wait for the changed call, or two swapped calls may be equal. So the caller determines the expected result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

from hypothesis import strategies as st

from ddpsim import UsageError
from ddpsim.scenarios.fuzzing.strategies.generator import (
    COLLECTIVES,
    ProgramExtent,
    RandomSource,
    choose_one,
    choose_several,
    draw_collective,
    draw_program,
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
    """Return the program broken on one rank, the kind of break, and the rank; None if this kind fits no rank."""
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
    """Move the call to another group of the rank. If it has a value per member, the groups are of one size."""
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


@dataclass(frozen=True, slots=True)
class _HypothesisSource:
    draw: st.DrawFn

    def draw_integer(self, least: int, most: int) -> int:
        """Return a number in the range, drawn by hypothesis."""
        return self.draw(st.integers(least, most))


@st.composite
def programs(
    draw: st.DrawFn, *, min_ranks: int = 2, max_ranks: int = 4, min_rounds: int = 0, max_rounds: int = 8
) -> Program:
    """Draw a correct program of plain calls: it passes under every schedule.

    Drawn are the number of ranks, up to two more groups, and up to `max_rounds` collectives of any operation or
    messages, directed or to a receive from any source, with their shapes (of one and two dimensions, scalars, empty and
    large ones), dtypes, reductions, roots and splits. Each rank waits for a call at once, some calls later, or never.

        @given(programs(max_ranks=3))
        def test_my_transport(program):
            assert simulate(run_steps, program.world_size, args=(program,)).verdict is Verdict.PASS
    """
    _check_range("ranks", min_ranks, max_ranks, least=1)
    _check_range("rounds", min_rounds, max_rounds, least=0)
    return draw_program(_HypothesisSource(draw), ProgramExtent((min_ranks, max_ranks), (min_rounds, max_rounds)))


@st.composite
def broken_programs(
    draw: st.DrawFn, *, min_ranks: int = 2, max_ranks: int = 4, max_rounds: int = 8
) -> tuple[Program, BreakKind]:
    """Draw a program that was broken in one place of one rank, and the kind of break.

    A break need not be a fault: if no rank waits for the call, the program still passes.
    `ddpsim.simulator.programs.check` returns what happens. Kinds are those of `BreakKind`: a call that is missing,
    repeated, swapped or of another operation, shape, dtype, reduction, root, group, peer or tag; splits that differ; a
    rank that returns early or crashes.

        @given(broken_programs())
        def test_what_is_found(chosen):
            program, kind = chosen
            assert bool(check(program).findings) == bool(my_checker(program))
    """
    program = draw(programs(min_ranks=max(min_ranks, 2), max_ranks=max_ranks, min_rounds=1, max_rounds=max_rounds))
    choices = _HypothesisSource(draw)
    kind = choose_one(choices, possible_breaks(program))
    changed = break_program(choices, program, kind)
    assert changed is not None, "whether a break fits does not depend on the drawn choices"
    return changed[0], kind


def _check_range(what: str, least_wanted: int, most: int, *, least: int) -> None:
    if not least <= least_wanted <= most:
        raise UsageError(
            f"programs of {least_wanted} to {most} {what} are asked for, expected a range from {least} on: "
            f"give min_{what} and max_{what} that fit together"
        )
