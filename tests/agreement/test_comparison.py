"""The comparison with reports made up: it agrees where it should, and notices each way in which they could differ."""

import pickle
from dataclasses import replace

import pytest

from ddpsim.scenarios.fuzzing.strategies.programs import BreakKind
from ddpsim.scenarios.jobs.rank_report import ErrorReport, RankEnding, RankReport
from ddpsim.scenarios.ranks.interpreter import TensorValues
from ddpsim.simulator.programs.program import CRASH, CrashStep, Issue, Wait
from tests.agreement.comparison import check_made_by_gloo, compare, simulated
from tests.agreement.gloo import GlooError
from tests.agreement.labelled import LabelledProgram, labelled
from tests.agreement.table import disagreements, silences, table
from tests.kit.rows import rows
from tests.programs.programs import barrier, program, received, reduced, sent, waited

A = reduced("a", dtype="float16")
HEALTHY = program(waited(A, barrier("b")), waited(A, barrier("b")))
LATE = program(waited(A), waited(A, barrier("b")))
CRASHING = program((CrashStep(),), waited(A))
CRASHING_ALONE = program((A, CrashStep()), waited(A))


def returned(value):
    return RankReport(0, RankEnding.RETURNED, 0.0, value=pickle.dumps(value))


def raised(line):
    return RankReport(1, RankEnding.RAISED, 0.0, error=ErrorReport(line, "", None))


def died(how):
    return RankReport(1, RankEnding.DIED, 0.0, death=how)


HUNG, DONE, DIED = RankReport(0, RankEnding.HUNG, 0.0), returned({}), died("signal SIGABRT")
CRASHED = raised(f"InjectedCrashError: {CRASH}")
FAILED = raised("RuntimeError: connection closed")


def faithful(result):
    """What gloo does if it does the same."""
    return [returned(value) for value in result.returns]


def disagreement(steps, reports, kind=BreakKind.NONE):
    return compare(LabelledProgram(7, steps, kind), simulated(steps), reports).disagreement


def test_the_same_agrees():
    assert disagreement(HEALTHY, faithful(simulated(HEALTHY))) == ""


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (HUNG, "the simulator finds nothing, but on gloo rank 1 hung"),
        (DIED, "the simulator finds nothing, but on gloo rank 1 died: signal SIGABRT"),
        (FAILED, "the simulator finds nothing, but on gloo rank 1 raised: RuntimeError: connection closed"),
    ],
)
def test_what_passes_has_to_complete(report, words):
    assert disagreement(HEALTHY, [faithful(simulated(HEALTHY))[0], report]) == words


def test_what_deadlocks_has_to_go_wrong():
    assert disagreement(LATE, [DONE, HUNG]) == ""
    assert disagreement(LATE, [DONE, DIED]) == ""
    assert disagreement(LATE, [DONE, DONE]) == (
        "the simulator finds deadlock.missing_rank, but on gloo every rank returned"
    )


def test_a_crash_has_to_be_that_ranks_and_does_not_stand_for_the_wait():
    assert disagreement(CRASHING, [CRASHED, HUNG]) == ""
    assert disagreement(CRASHING, [HUNG, HUNG]) == "rank 0 crashes on the simulator, but on gloo it hung"
    assert disagreement(CRASHING, [FAILED, HUNG]) == "rank 0 crashes on the simulator, but on gloo it raised"
    assert disagreement(CRASHING, [CRASHED, DONE]) == (
        "the simulator finds rank_error, deadlock.dead_rank, but on gloo every other rank returned"
    )


def test_a_crash_that_nobody_waits_for_is_all_there_is():
    assert disagreement(CRASHING_ALONE, [CRASHED, DONE]) == ""


def changed(output, byte):
    return output._replace(content=bytes([byte, *output.content[1:]]))


def with_output(steps, change):
    """The reports of `steps`, with rank 1's "a" changed."""
    ours, theirs = simulated(steps).returns
    return [returned(ours), returned({**theirs, "a": [change(output) for output in theirs["a"]]})]


def test_sums_may_differ_in_the_last_bit_and_not_more():
    def off(bits):
        return with_output(HEALTHY, lambda output: changed(output, output.content[0] ^ bits))

    assert disagreement(HEALTHY, off(1)) == ""
    assert disagreement(HEALTHY, off(64)).startswith("'a' on rank 1: results are ")


def test_beside_a_sum_of_nothing_another_may_round():
    both = Issue("a", "all_reduce_coalesced", shapes=((0,), (4,)), dtype="float16", reduction="SUM")
    steps = program(waited(both), waited(both))

    def rounded(output):
        return changed(output, output.content[0] ^ 1) if output.content else output

    assert disagreement(steps, with_output(steps, rounded)) == ""


@pytest.mark.parametrize("how", [{"reduction": "MAX"}, {"dtype": "int32"}], ids=["maximum", "whole-numbers"])
def test_nothing_else_may_differ_at_all(how):
    steps = program(*[waited(reduced("a", **{"dtype": "float16", **how}))] * 2)
    reports = with_output(steps, lambda output: changed(output, output.content[0] ^ 1))
    assert disagreement(steps, reports).startswith("'a' on rank 1: output 0 is [")


def test_not_a_number_is_no_rounding():
    reports = with_output(HEALTHY, lambda output: output._replace(content=b"\xff" * len(output.content)))
    assert disagreement(HEALTHY, reports).startswith("'a' on rank 1: results are nan apart, expected at most ")


def test_true_is_any_byte_but_zero():
    steps = program(*[waited(reduced("a", dtype="bool"))] * 2)
    true = with_output(steps, lambda output: output._replace(content=bytes(2 * byte for byte in output.content)))
    assert any(1 in value["a"][0].content for value in simulated(steps).returns)
    assert disagreement(steps, true) == ""
    other = with_output(steps, lambda output: output._replace(content=bytes(not byte for byte in output.content)))
    assert disagreement(steps, other) != ""


def test_outputs_are_of_one_shape_and_of_the_same_calls():
    other = with_output(HEALTHY, lambda output: TensorValues(output.dtype, (2, 2), output.content))
    assert disagreement(HEALTHY, other) == "'a' on rank 1: outputs of other dtypes or shapes"
    ours, theirs = simulated(HEALTHY).returns
    assert (
        disagreement(HEALTHY, [returned({"a": ours["a"]}), returned(theirs)])
        == "rank 0 waited for ['a', 'b'] on the simulator, but for ['a'] on gloo"
    )


# --- what is no verdict of gloo's -------------------------------------------------------------------------------------


@rows(
    "report",
    [
        died("signal SIGKILL"),
        died("exit status 3"),
        raised("ImportError: cannot import name 'it'"),
        raised("MemoryError"),
        raised("OSError: [Errno 28] No space left on device"),
    ],
    ids=lambda report: report.death or report.error.line.partition(":")[0],
)
def test_what_gloo_has_not_done(report):
    with pytest.raises(GlooError, match=rf"^rank 1 of seed 7 {report.ending.value} \("):
        check_made_by_gloo(LabelledProgram(7, HEALTHY, BreakKind.NONE), [HUNG, report])


@rows("report", [DIED, died("signal SIGSEGV"), FAILED, raised("DistBackendError: no"), CRASHED, HUNG, DONE])
def test_what_gloo_or_the_program_has(report):
    check_made_by_gloo(LabelledProgram(7, HEALTHY, BreakKind.NONE), [HUNG, report])


# --- the third witness ------------------------------------------------------------------------------------------------


def test_a_check_that_finds_something_else_is_noticed():
    result = simulated(LATE)
    blamed = replace(result.findings[0], ranks=(1,))
    other = replace(result, findings=(blamed,))
    comparison = compare(LabelledProgram(7, LATE, BreakKind.EXTRA), other, [DONE, HUNG])
    assert comparison.disagreement == (
        "check finds deadlock.missing_rank of [0], but simulate finds deadlock.missing_rank of [1]"
    )


def test_faults_seeded_into_the_check_are_noticed(monkeypatch):
    faults = {
        "message_differing_field": lambda send, receive: None,
        "find_deadlocks": lambda waits: (),
        "first_differing_field": lambda calls: None,
    }
    misfit = program(waited(sent("m", 1)), waited(received("m", 0, dtype="int32")))
    programs = [LabelledProgram(120, misfit, BreakKind.DTYPE), *(labelled(seed) for seed in range(120))]
    results = [simulated(each.program) for each in programs]
    for name, fault in faults.items():
        with monkeypatch.context() as patched:
            patched.setattr(f"ddpsim.simulator.programs.check.{name}", fault)
            told = [
                compare(each, result, [HUNG] * each.program.world_size).disagreement
                for each, result in zip(programs, results, strict=True)
            ]
        assert any(words.startswith("check finds ") for words in told), name


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_counts():
    lost = program((*waited(A), sent("m", 1), Wait("m")), waited(A))
    other = program(waited(A), waited(reduced("a", dtype="float16", reduction="MAX")))
    compared = [
        compare(LabelledProgram(seed, steps, kind), simulated(steps), reports)
        for seed, (steps, kind, reports) in enumerate(
            [
                (HEALTHY, BreakKind.NONE, faithful(simulated(HEALTHY))),
                (HEALTHY, BreakKind.NONE, [HUNG, FAILED]),
                (lost, BreakKind.EXTRA, [HUNG, DONE]),
                (LATE, BreakKind.MISSING, [HUNG, DIED]),
                (other, BreakKind.REDUCTION, [DONE, DONE]),
                (CRASHING, BreakKind.CRASH, [CRASHED, HUNG]),
            ]
        )
    ]
    assert table(compared).splitlines() == [
        "broken        simulator   programs  completes      hangs     raises       dies   disagree",
        "none          passes             2          1          -          1          -          1",
        "missing       deadlock           1          -          -          -          1          -",
        "extra         deadlock           1          -          1          -          -          -",
        "reduction     mismatch           1          1          -          -          -          -",
        "crash         error              1          -          -          1          -          -",
        "all                              6          2          1          2          1          1",
    ]
    assert silences(compared) == "    1  each rank reduces its share in the way it was told itself"
    assert disagreements(compared) == ("seed 1 (none): the simulator finds nothing, but on gloo rank 0 hung")
    assert silences(compared[:1]) == disagreements(compared[:1]) == ""
