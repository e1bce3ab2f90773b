"""What the simulator fails, and gloo may let through: it does not check it.

gloo moves bytes. What they mean, and what each rank does with them, it neither sends nor compares; the ranks return,
with results that are wrong, or right by luck. Each of these kinds is proved on real gloo in tests/agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from math import prod

import torch

from simulator.calls import POINT_TO_POINT
from simulator.diagnosis.situation import Standing
from simulator.programs.checked import CheckedProgram, Met
from simulator.programs.operations import OPERATIONS
from simulator.programs.program import Crash, Issue, Program, Return, Wait
from simulator.verdict import Code


class Silence(Enum):
    """One thing that gloo does not check; the value says it."""

    ANOTHER_REDUCTION = "each rank reduces its share in the way it was told itself"
    AS_MANY_BYTES = "a dtype of the same size, or a shape of as many elements, moves the same bytes"
    ROOM_TO_SPARE = (
        "what one rank sends (a message, a broadcast, a scatter) may be shorter than what it is received into"
    )
    ONE_ALGORITHM = "all_reduce_coalesced and reduce_scatter_tensor are all_reduce to gloo, and the all_gathers are one"
    SAME_PART = "a rank that is wrong about the root of a broadcast or of a small reduce may have the same part in it"
    NEVER_WAITED_FOR = "a rank that does not wait for its call never learns that it hangs or fails in the background"
    OWN_PART_DONE = "in a collective with a root, a rank goes on once its own part is done, and does not wait for all"


def why(program: Program, checked: CheckedProgram) -> Silence | None:
    """What explains that gloo let a program through which fails; None if nothing does."""
    codes = [each.code for each in checked.findings if each.code.value.startswith("mismatch.")]
    for code, calls in zip(codes, checked.clashing, strict=True):
        known = next((silence for silence, lets_through in _LETS_THROUGH.items() if lets_through(code, calls)), None)
        if known is not None:
            return known
        if any(not _is_waited_for(program, call) for call in calls):
            return Silence.NEVER_WAITED_FOR
    is_rooted = any(OPERATIONS[issue.operation].has_root for issue in _stuck_in(program, checked))
    return Silence.OWN_PART_DONE if is_rooted and not codes else None


def _is_waited_for(program: Program, call: Met) -> bool:
    steps = program.ranks[call.rank]
    end = next((place for place, step in enumerate(steps) if isinstance(step, (Return, Crash))), len(steps))
    return Wait(call.issue.name) in steps[:end]


def _stuck_in(program: Program, checked: CheckedProgram) -> Iterator[Issue]:
    """The calls that ranks wait for in the end."""
    for steps, end in zip(program.ranks, checked.ends, strict=True):
        if end.standing is Standing.WAITING:
            waited_for = steps[end.step]
            yield from (step for step in steps if isinstance(step, Issue) and Wait(step.name) == waited_for)


# --- what lets a mismatch through -------------------------------------------------------------------------------------


def _is_reduction(code: Code, calls: Sequence[Met]) -> bool:
    return code is Code.MISMATCH_REDUCTION


def _is_of_equal_size(code: Code, calls: Sequence[Met]) -> bool:
    return code in _OF_SIZE and len({_size(call.issue) for call in calls}) == 1


def _has_room(code: Code, calls: Sequence[Met]) -> bool:
    """True if there is room for all that is sent, and for more."""
    issue = calls[0].issue
    if code not in _OF_SIZE or issue.operation not in {*_ONE_SENDS, "gather"}:
        return False
    one = calls[0] if issue.operation in POINT_TO_POINT else next(call for call in calls if call.rank == issue.root)
    size, sizes = _size(one.issue), [_size(call.issue) for call in calls]
    return size == (min(sizes) if issue.operation in _ONE_SENDS else max(sizes))


def _has_one_algorithm(code: Code, calls: Sequence[Met]) -> bool:
    operations = {call.issue.operation for call in calls}
    return code is Code.MISMATCH_OPERATION and any(operations <= alike for alike in _ONE_ALGORITHM)


def _may_have_one_part(code: Code, calls: Sequence[Met]) -> bool:
    return code is Code.MISMATCH_ROOT and calls[0].issue.operation in ("broadcast", "reduce")


def _size(issue: Issue) -> int:
    """Bytes; of a row in all_to_all_single, to which each rank brings rows of its own number."""
    dtype: torch.dtype = getattr(torch, str(issue.dtype))
    shapes = [shape[1:] for shape in issue.shapes] if issue.operation == "all_to_all_single" else issue.shapes
    return sum(prod(shape) for shape in shapes) * dtype.itemsize


_OF_SIZE = (Code.MISMATCH_DTYPE, Code.MISMATCH_SHAPE)

_ONE_SENDS = frozenset({"send", "recv", "broadcast", "scatter"})

_ONE_ALGORITHM = (
    frozenset({"all_reduce", "all_reduce_coalesced", "reduce_scatter_tensor"}),
    frozenset({"all_gather", "all_gather_coalesced", "all_gather_into_tensor"}),
)

_LETS_THROUGH: dict[Silence, Callable[[Code, Sequence[Met]], bool]] = {
    Silence.ANOTHER_REDUCTION: _is_reduction,
    Silence.AS_MANY_BYTES: _is_of_equal_size,
    Silence.ROOM_TO_SPARE: _has_room,
    Silence.ONE_ALGORITHM: _has_one_algorithm,
    Silence.SAME_PART: _may_have_one_part,
}
