"""The comparison with outcomes made up: it agrees where it should, and notices each way in which they could differ."""

from dataclasses import replace

import pytest

from ddpsim.scenarios.agreement.breaking import Kind, LabelledProgram, labelled
from ddpsim.scenarios.agreement.comparison import compare, simulated
from ddpsim.scenarios.agreement.outcome import Ending, RankOutcome
from ddpsim.scenarios.agreement.table import disagreements, silences, table
from ddpsim.scenarios.ranks.interpreter import Output
from ddpsim.simulator.programs.program import CRASH, Crash, Wait
from tests.programs.programs import barrier, program, received, reduced, sent, waited

A = reduced("a", dtype="float16")
HEALTHY = program(waited(A, barrier("b")), waited(A, barrier("b")))
LATE = program(waited(A), waited(A, barrier("b")))
CRASHING = program((Crash(),), waited(A))
CRASHING_ALONE = program((A, Crash()), waited(A))

HUNG, DIED = RankOutcome(Ending.HUNG, error="timed out"), RankOutcome(Ending.DIED, error="SIGABRT")
CRASHED = RankOutcome(Ending.RAISED, error=f"InjectedCrashError: {CRASH}")
FAILED = RankOutcome(Ending.RAISED, error="RuntimeError: connection closed\nby peer")


def returned(value=None):
    return RankOutcome(Ending.RETURNED, {} if value is None else value)


def faithful(result):
    """What gloo does if it does the same."""
    return [returned(dict(value)) for value in result.returns]


def disagreement(steps, outcomes, kind=Kind.NONE):
    return compare(LabelledProgram(7, steps, kind), simulated(steps), outcomes).disagreement


def test_the_same_agrees():
    assert disagreement(HEALTHY, faithful(simulated(HEALTHY))) == ""


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (HUNG, "the simulator finds nothing, but on gloo rank 1 hung: timed out"),
        (DIED, "the simulator finds nothing, but on gloo rank 1 died: SIGABRT"),
        (FAILED, "the simulator finds nothing, but on gloo rank 1 raised: RuntimeError: connection closed"),
    ],
)
def test_what_passes_has_to_complete(outcome, words):
    assert disagreement(HEALTHY, [faithful(simulated(HEALTHY))[0], outcome]) == words


def test_what_deadlocks_has_to_go_wrong():
    assert disagreement(LATE, [returned(), HUNG]) == ""
    assert disagreement(LATE, [returned(), DIED]) == ""
    assert disagreement(LATE, [returned(), returned()]) == (
        "the simulator finds deadlock.missing_rank, but on gloo every rank returned"
    )


def test_a_crash_has_to_be_that_ranks_and_does_not_stand_for_the_wait():
    assert disagreement(CRASHING, [CRASHED, HUNG]) == ""
    assert disagreement(CRASHING, [HUNG, HUNG]) == "rank 0 crashes on the simulator, but on gloo it hung"
    assert disagreement(CRASHING, [FAILED, HUNG]) == "rank 0 crashes on the simulator, but on gloo it raised"
    assert disagreement(CRASHING, [CRASHED, returned()]) == (
        "the simulator finds rank_error, deadlock.dead_rank, but on gloo every other rank returned"
    )


def test_a_crash_that_nobody_waits_for_is_all_there_is():
    assert disagreement(CRASHING_ALONE, [CRASHED, returned()]) == ""


def changed(output, byte):
    return output._replace(content=bytes([byte, *output.content[1:]]))


def with_output(steps, change):
    """The outcomes of `steps`, with rank 1's "a" changed."""
    outcomes = faithful(simulated(steps))
    outcomes[1].value["a"] = [change(output) for output in outcomes[1].value["a"]]
    return outcomes


def test_sums_may_differ_in_the_last_bit_and_not_more():
    def off(bits):
        return with_output(HEALTHY, lambda output: changed(output, output.content[0] ^ bits))

    assert disagreement(HEALTHY, off(1)) == ""
    assert disagreement(HEALTHY, off(64)).startswith("'a' on rank 1: results are ")


@pytest.mark.parametrize("how", [{"reduction": "MAX"}, {"dtype": "int32"}], ids=["maximum", "whole-numbers"])
def test_nothing_else_may_differ_at_all(how):
    steps = program(*[waited(reduced("a", **{"dtype": "float16", **how}))] * 2)
    outcomes = with_output(steps, lambda output: changed(output, output.content[0] ^ 1))
    assert disagreement(steps, outcomes).startswith("'a' on rank 1: output 0 is [")


def test_not_a_number_is_no_rounding():
    outcomes = with_output(HEALTHY, lambda output: output._replace(content=b"\xff" * len(output.content)))
    assert disagreement(HEALTHY, outcomes).startswith("'a' on rank 1: results are nan apart, expected at most ")


def test_true_is_any_byte_but_zero():
    steps = program(*[waited(reduced("a", dtype="bool"))] * 2)
    true = with_output(steps, lambda output: output._replace(content=bytes(2 * byte for byte in output.content)))
    assert any(1 in outcome.value["a"][0].content for outcome in faithful(simulated(steps)))
    assert disagreement(steps, true) == ""
    other = with_output(steps, lambda output: output._replace(content=bytes(not byte for byte in output.content)))
    assert disagreement(steps, other) != ""


def test_outputs_are_of_one_shape_and_of_the_same_calls():
    other = with_output(HEALTHY, lambda output: Output(output.dtype, (2, 2), output.content))
    assert disagreement(HEALTHY, other) == "'a' on rank 1: outputs of other dtypes or shapes"
    fewer = faithful(simulated(HEALTHY))
    del fewer[0].value["b"]
    assert disagreement(HEALTHY, fewer) == "rank 0 waited for ['a', 'b'] on the simulator, but for ['a'] on gloo"


# --- the third witness ------------------------------------------------------------------------------------------------


def test_a_check_that_finds_something_else_is_noticed():
    result = simulated(LATE)
    blamed = replace(result.findings[0], ranks=(1,))
    other = replace(result, findings=(blamed,))
    comparison = compare(LabelledProgram(7, LATE, Kind.EXTRA), other, [returned(), HUNG])
    assert comparison.disagreement == (
        "check finds deadlock.missing_rank of [0], but simulate finds deadlock.missing_rank of [1]"
    )


@pytest.mark.parametrize("fault", ["no-messages", "no-waits", "no-disagreement"])
def test_faults_seeded_into_the_check_are_noticed(monkeypatch, fault):
    faults = {
        "no-messages": ("pair_disagreement", lambda send, receive: None),
        "no-waits": ("deadlocks", lambda situation: ()),
        "no-disagreement": ("disagreement", lambda calls: None),
    }
    misfit = program(waited(sent("m", 1)), waited(received("m", 0, dtype="int32")))
    programs = [LabelledProgram(120, misfit, Kind.DTYPE), *(labelled(seed) for seed in range(120))]
    results = [simulated(each.program) for each in programs]
    monkeypatch.setattr(f"ddpsim.simulator.programs.check.{faults[fault][0]}", faults[fault][1])
    told = [
        compare(each, result, [HUNG] * each.program.world_size).disagreement
        for each, result in zip(programs, results, strict=True)
    ]
    assert any(words.startswith("check finds ") for words in told)


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_counts():
    lost = program((*waited(A), sent("m", 1), Wait("m")), waited(A))
    other = program(waited(A), waited(reduced("a", dtype="float16", reduction="MAX")))
    compared = [
        compare(LabelledProgram(seed, steps, kind), simulated(steps), outcomes)
        for seed, (steps, kind, outcomes) in enumerate(
            [
                (HEALTHY, Kind.NONE, faithful(simulated(HEALTHY))),
                (HEALTHY, Kind.NONE, [HUNG, FAILED]),
                (lost, Kind.EXTRA, [HUNG, returned()]),
                (LATE, Kind.MISSING, [HUNG, DIED]),
                (other, Kind.REDUCTION, [returned(), returned()]),
                (CRASHING, Kind.CRASH, [CRASHED, HUNG]),
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
    assert disagreements(compared) == ("seed 1 (none): the simulator finds nothing, but on gloo rank 0 hung: timed out")
    assert silences(compared[:1]) == disagreements(compared[:1]) == ""
