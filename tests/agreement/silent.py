"""What the simulator fails, and gloo may let through: it does not check it.

gloo moves bytes. What they mean, and what each rank does with them, it neither sends nor compares; the ranks return,
with results that are wrong, or right by luck. Each of these kinds is proved on real gloo in tests/agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from enum import Enum

from ddpsim.simulator.diagnosis.deadlock_snapshot import RankState
from ddpsim.simulator.operations import POINT_TO_POINT
from ddpsim.simulator.programs.check import CheckedProgram, MatchedCall, check_program
from ddpsim.simulator.programs.program import CrashStep, Issue, Program, Return, Wait
from ddpsim.simulator.programs.validation import members_of
from ddpsim.simulator.verdict import Code, Verdict
from tests.agreement.parts import HAVE_ROOM_TO_SPARE, Algorithm, algorithm_of, is_of_nothing, size, who_ends


class Silence(Enum):
    """One thing that gloo does not check; the value says it."""

    ANOTHER_REDUCTION = "each rank reduces its share in the way it was told itself"
    AS_MANY_BYTES = "a dtype of the same size, or a shape of as many elements, moves the same bytes"
    ROOM_TO_SPARE = (
        "what one rank sends (a message, a broadcast, a scatter, a gather, an all_to_all) may be shorter than what "
        "it is received into"
    )
    ONE_ALGORITHM = "all_reduce_coalesced and reduce_scatter_tensor are all_reduce to gloo, and the all_gathers are one"
    SAME_PART = "a rank that is wrong about the root of a broadcast or of a small reduce may have the same part in it"
    NEVER_WAITED_FOR = "a rank that does not wait for its call never learns that it hangs or fails in the background"
    OWN_PART_DONE = "in a collective with a root, a rank goes on once its own part is done, and does not wait for all"
    NOTHING_TO_MOVE = "reductions and all_gathers of no elements wait for nobody"


def why(program: Program, checked: CheckedProgram) -> Silence | None:
    """What explains that gloo let a program through which fails; None if nothing does."""
    codes = [each.code for each in checked.findings if each.code.value.startswith("mismatch.")]
    if codes:
        reasons = [_why_not_noticed(program, *clash) for clash in zip(codes, checked.clashing, strict=True)]
        return reasons[0] if all(reasons) else None
    ended = dict(_waits_that_end(program, checked))
    if not ended:
        return None
    then = _without(program, ended)
    after = check_program(then)
    # A crash is no rank's wait; the comparison asks for it by itself.
    is_clear = all(each.code is Code.RANK_ERROR or each.code.verdict is Verdict.PASS for each in after.findings)
    return next(iter(ended.values())) if is_clear or why(then, after) else None


# --- calls that do not agree ------------------------------------------------------------------------------------------


def _why_not_noticed(program: Program, code: Code, calls: Sequence[MatchedCall]) -> Silence | None:
    """What explains that each rank got its call done that waited for it."""
    members = members_of(program)[calls[0].issue.group]
    is_message = calls[0].issue.operation in POINT_TO_POINT
    if is_message or len(calls) == len(members):
        known = next((silence for silence, lets_through in _LETS_THROUGH.items() if lets_through(code, calls)), None)
        if known is not None:
            return known
    by_rank = {call.rank: call.issue for call in calls}
    done = {rank for rank, issue in by_rank.items() if is_of_nothing(issue)}
    is_by_length = _is_by_length(code, calls[0].issue, members)
    if is_by_length or (code in (Code.MISMATCH_ROOT, Code.MISMATCH_OPERATION) and not is_message):
        done = who_ends(by_rank, list(by_rank) if is_message else members)
    if not done >= {call.rank for call in calls if _is_waited_for(program, call)}:
        return None
    if done != set(by_rank):
        return Silence.NEVER_WAITED_FOR
    if code is Code.MISMATCH_ROOT:
        return Silence.SAME_PART
    return Silence.ROOM_TO_SPARE if is_by_length else Silence.NOTHING_TO_MOVE


def _is_by_length(code: Code, issue: Issue, members: Sequence[int]) -> bool:
    """True if lengths differ in calls whose messages say how far each rank gets; an all_gather is one step for two."""
    algorithm = algorithm_of(issue.operation)
    has_room = algorithm in HAVE_ROOM_TO_SPARE
    is_one_step = algorithm is Algorithm.ALL_GATHER and len(members) == 2
    return code in (*_OF_SIZE, Code.MISMATCH_SPLITS) and (has_room or is_one_step)


def _is_waited_for(program: Program, call: MatchedCall) -> bool:
    steps = program.ranks[call.rank]
    end = next((index for index, step in enumerate(steps) if isinstance(step, (Return, CrashStep))), len(steps))
    return Wait(call.issue.name) in steps[:end]


# --- calls that not all ranks make ------------------------------------------------------------------------------------


def _waits_that_end(program: Program, checked: CheckedProgram) -> Iterator[tuple[tuple[int, Wait], Silence]]:
    """The waits in which ranks are stuck, and which end on gloo."""
    members = members_of(program)
    for rank, issue in _stuck_in(program, checked):
        if rank in who_ends(_made_with(program, checked, rank, issue), members[issue.group]):
            yield (rank, Wait(issue.name)), Silence.NOTHING_TO_MOVE if is_of_nothing(issue) else Silence.OWN_PART_DONE


def _stuck_in(program: Program, checked: CheckedProgram) -> Iterator[tuple[int, Issue]]:
    """Each rank that waits for a collective in the end, and which."""
    for rank, (steps, end) in enumerate(zip(program.ranks, checked.ends, strict=True)):
        if end.state is RankState.WAITING:
            stuck = [step for step in steps if isinstance(step, Issue) and Wait(step.name) == steps[end.step]]
            yield from ((rank, issue) for issue in stuck if issue.operation not in POINT_TO_POINT)


def _made_with(program: Program, checked: CheckedProgram, rank: int, issue: Issue) -> dict[int, Issue]:
    """By rank, the calls made so far that belong to a rank's: of one number in its group."""
    collectives = [
        [each for each in steps[: end.step] if isinstance(each, Issue) and each.group == issue.group]
        for steps, end in zip(program.ranks, checked.ends, strict=True)
    ]
    made = [[each for each in calls if each.operation not in POINT_TO_POINT] for calls in collectives]
    number = made[rank].index(issue)
    return {other: calls[number] for other, calls in enumerate(made) if len(calls) > number}


def _without(program: Program, waits: Collection[tuple[int, Wait]]) -> Program:
    ranks = [tuple(step for step in steps if (rank, step) not in waits) for rank, steps in enumerate(program.ranks)]
    return replace(program, ranks=tuple(ranks))


# --- what lets a mismatch through -------------------------------------------------------------------------------------


def _is_reduction(code: Code, calls: Sequence[MatchedCall]) -> bool:
    return code is Code.MISMATCH_REDUCTION


def _is_of_equal_size(code: Code, calls: Sequence[MatchedCall]) -> bool:
    return code in _OF_SIZE and len({size(call.issue) for call in calls}) == 1


def _has_one_algorithm(code: Code, calls: Sequence[MatchedCall]) -> bool:
    operations = {call.issue.operation for call in calls}
    return code is Code.MISMATCH_OPERATION and len({algorithm_of(operation) for operation in operations}) == 1


_OF_SIZE = (Code.MISMATCH_DTYPE, Code.MISMATCH_SHAPE)

_LETS_THROUGH: dict[Silence, Callable[[Code, Sequence[MatchedCall]], bool]] = {
    Silence.ANOTHER_REDUCTION: _is_reduction,
    Silence.AS_MANY_BYTES: _is_of_equal_size,
    Silence.ONE_ALGORITHM: _has_one_algorithm,
}
