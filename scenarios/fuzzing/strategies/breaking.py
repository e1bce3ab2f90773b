"""Break a program in one place of one rank, in a labelled way.

A break need not be a fault: if no rank waits for the call, or two swapped calls are equal, the program still passes.
The code that runs the program decides what the result has to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import pairwise

from ddpsim.scenarios.fuzzing.strategies.generator import COLLECTIVES, Choices, collective, one_of, some_of
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.operations import IN_PROGRAMS, POINT_TO_POINT, Rows, Shapes, Splits
from ddpsim.simulator.programs.program import DTYPES, Crash, Issue, Program, Return, Step, Wait, reductions_of
from ddpsim.simulator.programs.validation import members_of


class BreakKind(Enum):
    """The kind of fault that was put into a program. Reports list the kinds in this order."""

    NONE = "none"
    MISSING = "missing"
    """One call is left out."""
    EXTRA = "extra"
    """One call is repeated."""
    SWAPPED = "swapped"
    """Two calls are in the other order."""
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
"""A number that, added to a tag, gives a tag that no program has."""


Steps = tuple[Step, ...]


def broken(choices: Choices, program: Program, kind: BreakKind) -> tuple[Program, BreakKind, int] | None:
    """Return the program broken on one of its ranks; None if the break does not fit any rank."""
    for rank in some_of(choices, range(program.world_size), program.world_size):
        steps = _BREAKS[kind](choices, program, rank)
        if steps is not None:
            ranks = (*program.ranks[:rank], steps, *program.ranks[rank + 1 :])
            return replace(program, ranks=ranks), kind, rank
    return None


def possible_kinds(program: Program) -> list[BreakKind]:
    """Return the kinds of break that fit the program."""
    return [kind for kind in _BREAKS if broken(_Plainest(), program, kind) is not None]


class _Plainest:
    """Choices that always take the first option."""

    def integer(self, least: int, most: int) -> int:
        """Return the least."""
        return least


# --- breaks of the order: they return the rank's new steps, or None if the break does not fit -------------------------


def _missing(choices: Choices, program: Program, rank: int) -> Steps | None:
    steps = program.ranks[rank]
    issues = _issues(steps)
    if not issues:
        return None
    name = one_of(choices, issues).name
    return tuple(step for step in steps if not (isinstance(step, (Issue, Wait)) and step.name == name))


def _extra(choices: Choices, program: Program, rank: int) -> Steps | None:
    steps = program.ranks[rank]
    issues = _issues(steps)
    if not issues:
        return None
    again = replace(one_of(choices, issues), name="extra")
    index = choices.integer(0, len(steps))
    return (*steps[:index], again, Wait("extra"), *steps[index:])


def _swapped(choices: Choices, program: Program, rank: int) -> Steps | None:
    """Swap two consecutive calls, with their waits."""
    steps = program.ranks[rank]
    issues = _issues(steps)
    pairs = [(a, b) for a, b in pairwise(issues) if _without_name(a) != _without_name(b)]
    if not pairs:
        return None
    first, second = one_of(choices, pairs)
    exchanged: dict[Step, Step] = {
        first: second,
        second: first,
        Wait(first.name): Wait(second.name),
        Wait(second.name): Wait(first.name),
    }
    return tuple(exchanged.get(step, step) for step in steps)


def _stopped(end: Step, choices: Choices, program: Program, rank: int) -> Steps | None:
    steps = program.ranks[rank]
    indices = [index for index, step in enumerate(steps) if isinstance(step, Issue)]
    if not indices:
        return None
    index = one_of(choices, indices)
    return (*steps[:index], end, *steps[index:])


# --- breaks of one call -----------------------------------------------------------------------------------------------


Change = Callable[[Choices, Program, int, Issue], Issue | None]
"""Changes one call of a rank; None if this break does not fit the call."""


def _changed(change: Change) -> Callable[[Choices, Program, int], Steps | None]:
    def break_one(choices: Choices, program: Program, rank: int) -> Steps | None:
        steps = program.ranks[rank]
        issues = _issues(steps)
        for issue in some_of(choices, issues, len(issues)):
            other = change(choices, program, rank, issue)
            if other is not None:
                return tuple(other if step == issue else step for step in steps)
        return None

    return break_one


def _operation(choices: Choices, program: Program, rank: int, issue: Issue) -> Issue | None:
    if issue.operation in POINT_TO_POINT:
        other = "recv" if issue.operation == "send" else "send"
        return None if issue.peer == ANY_SOURCE else replace(issue, operation=other)
    members = members_of(program)[issue.group]
    operation = one_of(choices, [each for each in COLLECTIVES if each != issue.operation])
    drawn_anew = collective(choices, operation, issue.name, issue.group, members)[rank]
    return _alike(drawn_anew, issue)


def _alike(issue: Issue, model: Issue) -> Issue:
    """Return the call with the model's shape, dtype and reduction if its operation has them: harder to detect."""
    one = {Shapes.ONE, Shapes.SEVERAL}
    if IN_PROGRAMS[issue.operation].shapes in one and IN_PROGRAMS[model.operation].shapes in one:
        if IN_PROGRAMS[issue.operation].rows is Rows.ANY:
            issue = replace(issue, shapes=model.shapes[:1])
        if not issue.reduction or issue.reduction in reductions_of(str(model.dtype)):
            issue = replace(issue, dtype=model.dtype)
    return issue


def _shape(choices: Choices, program: Program, rank: int, issue: Issue) -> Issue | None:
    """Return the call with another number of elements, or the same number in another shape."""
    if not issue.shapes:
        return None
    if one_of(choices, (False, False, True)):
        return replace(issue, shapes=tuple((*shape, 1) for shape in issue.shapes))
    row = IN_PROGRAMS[issue.operation]
    if row.splits is Splits.ROWS:
        return replace(
            issue, shapes=tuple((shape[0], 2 * (shape[1] if len(shape) > 1 else 1)) for shape in issue.shapes)
        )
    rows = len(members_of(program)[issue.group]) if row.rows is Rows.DIVISIBLE else 1
    return replace(issue, shapes=tuple((shape[0] + rows, *shape[1:]) if shape else (2,) for shape in issue.shapes))


def _dtype(choices: Choices, program: Program, rank: int, issue: Issue) -> Issue | None:
    if issue.dtype is None:
        return None
    fitting = [dtype for dtype in DTYPES if issue.reduction is None or issue.reduction in reductions_of(dtype)]
    return replace(issue, dtype=one_of(choices, [dtype for dtype in fitting if dtype != issue.dtype]))


def _reduction(choices: Choices, program: Program, rank: int, issue: Issue) -> Issue | None:
    if issue.reduction is None:
        return None
    others = [reduction for reduction in reductions_of(str(issue.dtype)) if reduction != issue.reduction]
    return replace(issue, reduction=one_of(choices, others))


def _root(choices: Choices, program: Program, rank: int, issue: Issue) -> Issue | None:
    if issue.root is None:
        return None
    return replace(issue, root=one_of(choices, [r for r in members_of(program)[issue.group] if r != issue.root]))


def _splits(choices: Choices, program: Program, rank: int, issue: Issue) -> Issue | None:
    """Send one row of a member to another member."""
    if issue.splits is None:
        return None
    parts = list(issue.splits[0])
    giver = one_of(choices, [number for number, rows in enumerate(parts) if rows])
    taker = one_of(choices, [number for number in range(len(parts)) if number != giver])
    parts[giver] -= 1
    parts[taker] += 1
    return replace(issue, splits=(tuple(parts), issue.splits[1]))


def _group(choices: Choices, program: Program, rank: int, issue: Issue) -> Issue | None:
    """Move the call to another group of the rank; of equal size, if the call has values per member."""
    members = members_of(program)
    own = members[issue.group]
    per_member = IN_PROGRAMS[issue.operation].shapes in (Shapes.PER_MEMBER, Shapes.IN_AND_OUT)
    needs_size = per_member or IN_PROGRAMS[issue.operation].rows is Rows.DIVISIBLE
    needed = {rank, *(each for each in (issue.root, issue.peer) if each is not None and each != ANY_SOURCE)}
    others = [
        name
        for name, ranks in members.items()
        if name != issue.group and needed <= set(ranks) and (len(ranks) == len(own) or not needs_size)
    ]
    return replace(issue, group=one_of(choices, others)) if others else None


def _peer(choices: Choices, program: Program, rank: int, issue: Issue) -> Issue | None:
    if issue.peer is None or issue.peer == ANY_SOURCE:
        return None
    others = [other for other in members_of(program)[issue.group] if other not in (rank, issue.peer)]
    return replace(issue, peer=one_of(choices, others)) if others else None


def _tag(choices: Choices, program: Program, rank: int, issue: Issue) -> Issue | None:
    return None if issue.peer is None else replace(issue, tag=issue.tag + _FOREIGN_TAG)


def _issues(steps: Sequence[Step]) -> list[Issue]:
    return [step for step in steps if isinstance(step, Issue)]


def _without_name(issue: Issue) -> Issue:
    return replace(issue, name="")


_BREAKS: dict[BreakKind, Callable[[Choices, Program, int], Steps | None]] = {
    BreakKind.MISSING: _missing,
    BreakKind.EXTRA: _extra,
    BreakKind.SWAPPED: _swapped,
    BreakKind.OPERATION: _changed(_operation),
    BreakKind.SHAPE: _changed(_shape),
    BreakKind.DTYPE: _changed(_dtype),
    BreakKind.REDUCTION: _changed(_reduction),
    BreakKind.ROOT: _changed(_root),
    BreakKind.SPLITS: _changed(_splits),
    BreakKind.GROUP: _changed(_group),
    BreakKind.PEER: _changed(_peer),
    BreakKind.TAG: _changed(_tag),
    BreakKind.EARLY_RETURN: partial(_stopped, Return()),
    BreakKind.CRASH: partial(_stopped, Crash()),
}
