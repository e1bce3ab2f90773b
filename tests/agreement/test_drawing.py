"""Drawn programs: the same for a seed, sound, of every sort; broken ones of every kind, and really changed."""

from collections import Counter

import pytest

from ddpsim.scenarios.fuzzing.strategies.programs import BreakKind
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.operations import IN_PROGRAMS
from ddpsim.simulator.programs.check import check_program
from ddpsim.simulator.programs.program import DTYPES, REDUCTIONS, CrashStep, Issue, Return
from ddpsim.simulator.verdict import Code, Verdict
from tests.agreement.labelled import healthy as draw
from tests.agreement.labelled import labelled
from tests.kit.rows import rows

DRAWN = [draw(seed) for seed in range(300)]
LABELLED = [labelled(seed) for seed in range(1_000)]


def issues(program):
    return [step for steps in program.ranks for step in steps if isinstance(step, Issue)]


def test_a_seed_draws_one_program():
    assert [draw(seed) for seed in range(20)] == DRAWN[:20]
    assert [labelled(seed) for seed in range(20)] == LABELLED[:20]
    assert len(set(DRAWN)) == 300


def test_everything_is_drawn():
    calls = [issue for program in DRAWN for issue in issues(program)]
    assert {call.operation for call in calls} == set(IN_PROGRAMS)
    assert {call.dtype for call in calls} == {*DTYPES, None}
    assert {call.reduction for call in calls} == {*REDUCTIONS, None}
    assert {program.world_size for program in DRAWN} == {2, 3, 4}
    assert {len(program.groups) for program in DRAWN} == {0, 1, 2}
    assert {call.peer for call in calls} == {None, 0, 1, 2, 3, ANY_SOURCE}
    assert {call.root for call in calls} == {None, 0, 1, 2, 3}
    of_nothing = {call.operation for call in calls if (0,) in call.shapes}
    assert of_nothing == set(IN_PROGRAMS) - {"all_to_all_single", "barrier"}


def overlap(program):
    sets = [set(group.ranks) for group in program.groups]
    return len(sets) == 2 and bool(sets[0] & sets[1]) and sets[0] != sets[1]


def test_groups_overlap_in_some():
    assert sum(overlap(program) for program in DRAWN) > 20


def test_a_receive_from_any_source_has_a_tag_of_its_own():
    for program in DRAWN:
        received = [call for call in issues(program) if call.operation == "recv"]
        own = {call.tag for call in received if call.peer == ANY_SOURCE}
        assert all(len({call.name for call in received if call.tag == tag}) == 1 for tag in own)


def test_about_half_are_broken_and_every_kind_is_there_often():
    counts = Counter(each.kind for each in LABELLED)
    assert 450 <= counts.pop(BreakKind.NONE) <= 550
    assert set(counts) == set(BreakKind) - {BreakKind.NONE}
    assert min(counts.values()) >= 20


EXPECTED = {
    BreakKind.SHAPE: {Code.MISMATCH_SHAPE, Code.MISMATCH_SPLITS},  # in all_to_all a tensor's size is the split
    BreakKind.DTYPE: {Code.MISMATCH_DTYPE},
    BreakKind.REDUCTION: {Code.MISMATCH_REDUCTION},
    BreakKind.ROOT: {Code.MISMATCH_ROOT},
    BreakKind.SPLITS: {Code.MISMATCH_SPLITS},
    BreakKind.CRASH: {Code.RANK_ERROR},
    BreakKind.TAG: {Code.DEADLOCK_CYCLE, Code.DEADLOCK_MISSING_RANK},
    BreakKind.EARLY_RETURN: {Code.DEADLOCK_MISSING_RANK},
}
"""What comes first where the break is a fault at all."""


@rows("kind", EXPECTED, ids=lambda kind: kind.value)
def test_a_break_of_one_call_is_found_as_what_it_is(kind):
    findings = [check_program(each.program).findings for each in LABELLED if each.kind is kind]
    codes = {found[0].code for found in findings if found and found[0].code.verdict is Verdict.FAIL}
    assert codes == EXPECTED[kind]


def test_nearly_every_break_is_a_fault():
    broken = [each for each in LABELLED if each.kind is not BreakKind.NONE]
    failing = [each for each in broken if check_program(each.program).verdict is Verdict.FAIL]
    assert len(failing) >= 0.95 * len(broken)


@pytest.mark.parametrize(("kind", "step"), [(BreakKind.EARLY_RETURN, Return()), (BreakKind.CRASH, CrashStep())])
def test_an_end_stands_before_a_call(kind, step):
    for each in LABELLED:
        if each.kind is kind:
            steps = each.program.ranks[each.rank]
            assert isinstance(steps[steps.index(step) + 1], Issue)
