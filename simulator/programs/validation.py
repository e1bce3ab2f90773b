"""Checks whether ranks could run a program. A program is invalid if a backend rejects one of its calls at once; a
program that hangs is valid.

A second wait for a message is also invalid, because it hangs on gloo but not on the simulator.
"""

from collections.abc import Iterator, Mapping, Set
from math import prod

from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import IN_PROGRAMS, POINT_TO_POINT, RowRequirement, ShapeCount, SplitRule
from ddpsim.simulator.programs.program import DEFAULT, DTYPES, Group, Issue, Program, Wait, reductions_of_dtype

MOST_TAG = 2**31 - 1
"""The largest tag: torch stores it in a C int."""

MOST_ELEMENTS = 2**28
"""The most elements of a tensor; a larger shape is probably a mistake."""


def validate_program(program: Program) -> None:
    """Raise UsageError for the first step of a program that a rank could not run."""
    problem = next(_program_problems(program), None)
    if problem is not None:
        raise UsageError(f"{problem}: correct the program")


def members_of(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the global ranks of each group, including the default one."""
    return {DEFAULT: tuple(range(program.world_size)), **{group.name: group.ranks for group in program.groups}}


def _program_problems(program: Program) -> Iterator[str]:
    if program.world_size < 1:
        yield f"world_size is {program.world_size}, expected 1 or more"
    if len(program.ranks) != program.world_size:
        yield f"steps are given for {len(program.ranks)} ranks, expected steps for all {program.world_size}"
    names = {DEFAULT}
    for group in program.groups:
        yield from _name_problems(group.name)
        yield from _group_problems(group, program.world_size, names)
        names.add(group.name)
    members = members_of(program)
    for rank in range(program.world_size):
        yield from _rank_problems(program, rank, members)


def _group_problems(group: Group, world_size: int, names: set[str]) -> Iterator[str]:
    if group.name in names:
        yield f"group {group.name!r} is defined twice, expected another name"
    in_order = sorted({rank for rank in group.ranks if 0 <= rank < world_size})
    if not group.ranks or list(group.ranks) != in_order:
        yield (
            f"group {group.name!r} has ranks {list(group.ranks)}, expected some of 0 to {world_size - 1} in ascending "
            "order (new_group sorts them)"
        )


def _rank_problems(program: Program, rank: int, members: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    issued: dict[str, Issue] = {}
    waited: set[str] = set()
    for number, step in enumerate(program.ranks[rank]):
        where = f"rank {rank} step {number}: "
        if isinstance(step, Wait):
            yield from (where + problem for problem in _wait_problems(step.name, issued, waited))
            waited.add(step.name)
        if isinstance(step, Issue):
            if step.name in issued:
                yield f"{where}issues {step.name!r} again, expected another name"
            issued[step.name] = step
            yield from (where + problem for problem in _name_problems(step.name))
            yield from (where + problem for problem in _issue_problems(step, rank, members))


def _wait_problems(name: str, issued: Mapping[str, Issue], waited: Set[str]) -> Iterator[str]:
    if name not in issued:
        yield f"waits for {name!r}, expected the name of a call that it issued before"
    elif name in waited and issued[name].operation in POINT_TO_POINT:
        yield f"waits for the message {name!r} again, expected one wait, because gloo would wait forever"


def _name_problems(name: str) -> Iterator[str]:
    if any("\ud800" <= letter <= "\udfff" for letter in name):  # neither torch nor a file can store it
        yield f"name is {name!r}, expected valid Unicode without surrogates"


def _issue_problems(issue: Issue, rank: int, members: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    if issue.operation not in IN_PROGRAMS:
        yield f"operation is {issue.operation!r}, expected one of {', '.join(IN_PROGRAMS)}"
        return
    if rank not in members.get(issue.group, ()):
        own = ", ".join(name for name, ranks in members.items() if rank in ranks)
        yield f"group is {issue.group!r}, expected a group that the rank is in: {own}"
        return
    ranks = members[issue.group]
    yield from _option_problems(issue, ranks)
    yield from _peer_problems(issue, rank, ranks)
    yield from _shape_problems(issue, len(ranks))


def _option_problems(issue: Issue, members: tuple[int, ...]) -> Iterator[str]:
    operation = IN_PROGRAMS[issue.operation]
    dtypes = DTYPES if operation.shapes is not ShapeCount.NONE else (None,)
    if issue.dtype not in dtypes:
        yield f"{issue.operation} has dtype {issue.dtype!r}, expected {_alternatives_text(dtypes)}"
        return
    reductions = reductions_of_dtype(str(issue.dtype)) if operation.reduces else (None,)
    if issue.reduction not in reductions:
        expected = _alternatives_text(reductions)
        yield f"{issue.operation} of {issue.dtype} has reduction {issue.reduction!r}, expected {expected}"
    roots = members if operation.has_root else (None,)
    if issue.root not in roots:
        yield f"{issue.operation} has root {issue.root!r}, expected {_alternatives_text(roots)}"


def _peer_problems(issue: Issue, rank: int, members: tuple[int, ...]) -> Iterator[str]:
    peers: tuple[int | None, ...] = (None,)
    if issue.operation in POINT_TO_POINT:
        others = tuple(other for other in members if other != rank)
        peers = (*others, ANY_SOURCE) if issue.operation == "recv" else others
    if issue.peer not in peers:
        yield f"{issue.operation} has peer {issue.peer!r}, expected {_alternatives_text(peers)}"
    most = MOST_TAG if issue.operation in POINT_TO_POINT else 0
    if not 0 <= issue.tag <= most:
        yield f"{issue.operation} has tag {issue.tag}, expected {f'0 to {most}' if most else 0}"


def _shape_problems(issue: Issue, size: int) -> Iterator[str]:
    wanted, count = IN_PROGRAMS[issue.operation].shapes, len(issue.shapes)
    fits = {
        ShapeCount.NONE: count == 0,
        ShapeCount.ONE: count == 1,
        ShapeCount.SEVERAL: count >= 1,
        ShapeCount.PER_MEMBER: count == size,
        ShapeCount.IN_AND_OUT: count == 2,
    }
    if not fits[wanted]:
        yield f"{issue.operation} has {count} shapes, expected {wanted.value}"
    elif any(length < 0 for shape in issue.shapes for length in shape):
        yield f"{issue.operation} has shapes {list(issue.shapes)}, expected no length below 0"
    elif any(prod(max(length, 1) for length in shape) > MOST_ELEMENTS for shape in issue.shapes):
        yield f"{issue.operation} has shapes {list(issue.shapes)}, expected at most {MOST_ELEMENTS} elements"
    elif issue.peer == ANY_SOURCE and any(0 in shape for shape in issue.shapes):
        yield f"recv from any source has shapes {list(issue.shapes)}, expected 1 element or more, as gloo rejects 0"
    else:
        yield from _consistency_problems(issue, size)


def _consistency_problems(issue: Issue, size: int) -> Iterator[str]:
    """Yield an error text for each way in which a call's shapes and splits do not fit together."""
    shapes, operation = issue.shapes, issue.operation
    row = IN_PROGRAMS[operation]
    if row.rows is not RowRequirement.ANY and () in shapes:
        yield f"{operation} has a shape without dimensions, expected rows to divide"
    elif row.rows is RowRequirement.DIVISIBLE and shapes[0][0] % size:
        yield f"{operation} has {shapes[0][0]} rows, expected a multiple of the {size} members"
    elif row.splits is SplitRule.TENSORS and any(shape != shapes[0] for shape in shapes):
        yield f"{operation} has shapes {list(shapes)}, expected the same for each member"
    if (issue.splits is not None) != (row.splits is SplitRule.ROWS):
        yield f"{operation} has splits {issue.splits}, expected " + ("none" if issue.splits else "two lists")
    elif issue.splits is not None:
        rows = [shape[0] for shape in shapes]
        if any(len(side) != size or min(side) < 0 for side in issue.splits) or [*map(sum, issue.splits)] != rows:
            sums = " and ".join(map(str, rows))
            yield f"{operation} has splits {issue.splits}, expected two lists of {size} with sums of {sums}"


def _alternatives_text(values: tuple[object, ...]) -> str:
    texts = ["any source" if value == ANY_SOURCE else "none" if value is None else str(value) for value in values]
    return texts[0] if len(texts) == 1 else f"one of {', '.join(texts)}"
