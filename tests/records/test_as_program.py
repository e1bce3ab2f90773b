"""Jobs that hung, as tests that fail alike."""

import pytest

from ddpsim import Code
from ddpsim.scenarios.files.value_scenarios import expectation_of_program, scenario_of_program
from ddpsim.scenarios.fuzzing.shrinking.shrinker import shrink_scenario
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.program import Issue
from ddpsim.simulator.records import flight_recorder
from ddpsim.simulator.records.as_program import KEPT, make_program
from ddpsim.simulator.records.job import combine_records
from ddpsim.simulator.records.record_diagnosis import diagnose_job
from tests.records.dumps import call, job

DONE, HUNG = call(), call(line=21, state="started")


def on_all(size, odd=None, of_odd=()):
    """All ranks make three calls, of which the last hangs; an odd one makes others."""
    return [list(of_odd) if rank == odd else [DONE, DONE, HUNG] for rank in range(size)]


def in_pairs(size):
    """Each pair of ranks has two groups; in the last pair they are in opposite order."""
    groups = {str(1 + number): (number // 2 * 2, number // 2 * 2 + 1) for number in range(size)}
    calls = []
    for rank in range(size):
        first, second = (str(1 + rank // 2 * 2 + number) for number in range(2))
        order = (second, first) if rank == size - 1 else (first, second)
        is_stuck = rank >= size - 2
        calls.append([DONE, *(call(group=group, state="started" if is_stuck else "completed") for group in order)])
        if is_stuck:
            calls[-1].pop()
    return calls, groups


FAULTS = {
    "a missing rank": (lambda n: (on_all(n, n - 2, [DONE, DONE]), {}), Code.DEADLOCK_MISSING_RANK),
    "a rank a call behind": (lambda n: (on_all(n, n - 2, [DONE, HUNG]), {}), Code.DEADLOCK_MISSING_RANK),
    "another operation": (
        lambda n: (on_all(n, n - 2, [DONE, call("broadcast", line=30), HUNG]), {}),
        Code.MISMATCH_OPERATION,
    ),
    "another size": (lambda n: (on_all(n, n - 2, [DONE, call(size=(4,)), HUNG]), {}), Code.MISMATCH_SHAPE),
    "another dtype": (lambda n: (on_all(n, n - 2, [DONE, call(dtype="int64")]), {}), Code.MISMATCH_DTYPE),
    "a send without a receive": (
        lambda n: ([[DONE, *[call("send", to=n - 2, state="started")] * (rank == n - 1)] for rank in range(n)], {}),
        Code.DEADLOCK_MISSING_RANK,
    ),
}


def found(calls, groups=None):
    records = [flight_recorder.read_dump(each, f"rank_{rank}") for rank, each in job(calls, groups).items()]
    return diagnose_job(combine_records(records))


@pytest.mark.parametrize("size", [8, 64, pytest.param(1024, marks=pytest.mark.tier("nightly"))])
@pytest.mark.parametrize(("calls", "code"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found_and_the_test_has_it_too(calls, code, size):
    diagnosis = found(*calls(size))
    (finding,) = diagnosis.findings
    assert (finding.code, finding.ranks) == (code, (size - 2,))
    expected = expectation_of_program(make_program(diagnosis))
    assert (expected.code, expected.ranks) == (code, (size - 2,))


LINES = {"another operation": 30, "a rank a call behind": 21}


@pytest.mark.parametrize("size", [8, pytest.param(64, marks=pytest.mark.tier("nightly"))])
@pytest.mark.parametrize("name", FAULTS)
def test_the_line_is_right_and_the_test_shrinks_to_two_ranks(name, size):
    diagnosis = found(*FAULTS[name][0](size))
    assert LINES.get(name, 20) in {site.line for site in diagnosis.findings[0].sites}
    shrunk = shrink_scenario(scenario_of_program(make_program(diagnosis), name=name))
    assert (shrunk.scenario.world_size, shrunk.scenario.expected.code) == (2, FAULTS[name][1])


@pytest.mark.parametrize("size", [8, pytest.param(64, marks=pytest.mark.tier("nightly"))])
def test_two_groups_in_opposite_order(size):
    diagnosis = found(*in_pairs(size))
    program = make_program(diagnosis)
    odd = (size - 2, size - 1)
    expected = expectation_of_program(program)
    assert (expected.code, expected.ranks) == (Code.DEADLOCK_CYCLE, odd)
    assert [(each.code, each.ranks) for each in diagnosis.findings] == [(Code.DEADLOCK_CYCLE, odd)]
    shrunk = shrink_scenario(scenario_of_program(program, name="pairs"))
    assert (shrunk.scenario.world_size, shrunk.scenario.expected.code) == (2, Code.DEADLOCK_CYCLE)


def test_only_the_last_calls_are_kept_with_their_lines():
    program = make_program(found([[DONE] * 50 + [HUNG], [DONE] * 50, [DONE] * 50 + [HUNG]]))
    issues = [[(step.name, step.at) for step in steps if isinstance(step, Issue)] for steps in program.ranks]
    assert list(map(len, issues)) == [KEPT + 1, KEPT, KEPT + 1]
    assert issues[0][0] == ("all_reduce #30 on default", "/job/train.py:20 in train")
    assert issues[0][-1] == ("all_reduce #50 on default", "/job/train.py:21 in train")
    nearby = make_program(found([[DONE, HUNG], [DONE]]), folder="/job")
    assert nearby.ranks[0][0].at == "train.py:20 in train"
    assert make_program(found([[DONE, HUNG], [DONE]]), folder="/jo").ranks[0][0].at == "/job/train.py:20 in train"


def test_sizes_that_no_test_has_memory_for_stay_apart():
    big = [call(size=(2**31 + (rank == 1), 5)) for rank in range(3)]
    program = make_program(found([[DONE, each] for each in big]))
    shapes = [[step.shapes for step in steps if isinstance(step, Issue)] for steps in program.ranks]
    assert shapes == [[((1,),), ((2,),)], [((1,),), ((3,),)], [((1,),), ((2,),)]]


def test_a_rank_without_a_record_makes_no_calls():
    left = {rank: each for rank, each in job([[DONE, HUNG], [DONE], [], [DONE, HUNG]]).items() if rank != 2}
    diagnosis = diagnose_job(
        combine_records([flight_recorder.read_dump(each, f"rank_{rank}") for rank, each in left.items()])
    )
    program = make_program(diagnosis)
    assert [len(steps) for steps in program.ranks] == [2, 0, 0, 2]
    assert diagnosis.findings[0].ranks == (1,)


def every_operation():
    """Calls of each kind by three ranks, the first of which does not come to the last one."""
    names = ["_all_gather_base", "_reduce_scatter_base", "all_to_all", "gather", "scatter", "reduce", "barrier"]
    names += ["reduce_scatter", "all_gather", "broadcast", "allreduce_coalesced"]
    return [[*(call(name, (6,)) for name in names), *([HUNG] if rank else [])] for rank in range(3)]


def test_every_operation_of_a_recorder_can_be_made():
    expected = expectation_of_program(make_program(found(every_operation())))
    assert (expected.code, expected.ranks) == (Code.DEADLOCK_MISSING_RANK, (0,))


def test_an_operation_that_is_not_known_is_refused():
    with pytest.raises(UsageError, match="the records have the call 'new_window', which no test can make"):
        make_program(found([[call("new_window"), HUNG], [call("new_window")]]))
