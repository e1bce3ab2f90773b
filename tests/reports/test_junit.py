"""JUnit XML, as a reader of it sees it."""

import dataclasses
import io
from xml.etree import ElementTree

from junitparser import Error, Failure, JUnitXml, Skipped

from ddpsim.reports.document import Document, Finding, Run
from ddpsim.reports.forms.junit import JunitCase, junit_of, to_junit
from ddpsim.simulator.verdict import Verdict
from tests.kit.rows import rows
from tests.reports.made import exploration


def parsed(data):
    """The suites as junitparser reads them."""
    return JUnitXml.fromroot(ElementTree.parse(io.BytesIO(data)).getroot())


def only_case(data):
    ((case,),) = parsed(data)
    return case


def a_run(verdict, is_expected, **changes):
    finding = Finding("rank_error", Verdict.FAIL, (1,), "rank 1 raised ValueError", "the whole of it")
    findings = (finding,) if verdict is Verdict.FAIL else ()
    return dataclasses.replace(
        Run("a run", 2, verdict, findings, "the whole of it", is_expected=is_expected, seconds=0.25), **changes
    )


@rows(
    ("verdict", "is_expected", "result"),
    [
        (Verdict.PASS, None, None),
        (Verdict.PASS, True, None),
        (Verdict.PASS, False, Failure),
        (Verdict.FAIL, None, Failure),
        (Verdict.FAIL, True, None),
        (Verdict.FAIL, False, Failure),
        (Verdict.UNKNOWN, None, Error),
        (Verdict.UNKNOWN, True, None),
        (Verdict.UNKNOWN, False, Error),
    ],
)
def test_what_is_as_expected_passes_whatever_it_is(verdict, is_expected, result):
    case = only_case(to_junit(Document("t", (a_run(verdict, is_expected),))))
    assert [type(each) for each in case.result] == ([] if result is None else [result])
    assert (case.name, case.classname, case.time) == ("a run", "ddpsim", 0.25)


def test_a_failure_has_code_conclusion_text_and_how_to_run_it_again_and_a_pass_its_text():
    case = only_case(to_junit(Document("t", (a_run(Verdict.FAIL, True, conclusion="as expected: fail"),))))
    assert case.system_out == "as expected: fail\n\nthe whole of it"
    run = a_run(Verdict.FAIL, False, conclusion="not as expected: found this", replay="ddpsim replay x s1:0:1")
    case = only_case(to_junit(Document("t", (run,))))
    assert told(case) == ("rank_error", "not as expected: found this", "the whole of it")
    assert case.system_out == "replay  ddpsim replay x s1:0:1"
    without = dataclasses.replace(run, is_expected=None, conclusion="")
    assert told(only_case(to_junit(Document("t", (without,)))))[1] == "rank 1 raised ValueError"  # the summary


def told(case):
    (failure,) = case.result
    return failure.type, failure.message, failure.text


def test_an_exploration_is_one_case():
    made = exploration()
    failing = dataclasses.replace(made.runs[1], text="who waits", replay="ddpsim replay x s1:0:1")
    case = only_case(to_junit(dataclasses.replace(made, runs=(made.runs[0], failing))))
    counts = "   1200  pass\n     34  fail  deadlock.missing_rank rank 1"
    extent = made.exploration.extent
    assert (case.name, case.time) == ("story", 1.5)
    assert told(case) == ("deadlock.missing_rank", extent, f"{extent}\n\n{counts}\n\nwho waits")
    assert case.system_out == "replay  ddpsim replay x s1:0:1"


def test_an_exploration_that_found_nothing_is_unknown_or_passes():
    explored = dataclasses.replace(exploration().exploration, verdict=Verdict.UNKNOWN, failing=None)
    (error,) = only_case(to_junit(Document("p", (), explored))).result
    assert (type(error), error.type) == (Error, "unknown")
    expected = dataclasses.replace(explored, is_expected=True)
    assert only_case(to_junit(Document("p", (), expected))).result == []


def test_the_counts_of_a_suite():
    states = ["passed"] * 4 + ["failed"] * 3 + ["unknown"] * 2 + ["not run"]
    cases = [JunitCase(f"case {number}", "ddpsim.torch", state, 0.5) for number, state in enumerate(states)]
    (suite,) = parsed(junit_of(cases, name="zoo"))
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped, suite.time) == ("zoo", 10, 3, 2, 1, 5)
    kinds = [type(each) for case in suite for each in case.result]
    assert kinds == [Failure] * 3 + [Error] * 2 + [Skipped]
    suite.update_statistics()  # junitparser counts again
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (10, 3, 2, 1)
