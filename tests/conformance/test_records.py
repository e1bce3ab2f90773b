"""What differs from gloo is told in both directions, and every exception of the table has a test and a reason."""

import pytest

from tests.conformance import page
from tests.conformance.outcome import Outcome, Status, first_line, of_all
from tests.conformance.records import (
    Direction,
    Exceptional,
    changes,
    differences,
    load_exceptions,
    load_gloo,
    made_anew,
    save_exceptions,
    save_gloo,
)
from tests.conformance.suites import SUITES
from tests.conformance.ways import WAYS

PASSED, SKIPPED, FAILED = Outcome(Status.PASSED), Outcome(Status.SKIPPED), Outcome(Status.FAILED, "of a reason: two")
FAILS = Exceptional("cpu-3", "process", "test_a", Direction.FAILS_HERE)
PASSES = Exceptional("cpu-3", "process", "test_a", Direction.PASSES_HERE)


@pytest.mark.parametrize(
    ("gloo", "here", "found"),
    [
        (PASSED, PASSED, set()),
        (FAILED, FAILED, set()),
        (SKIPPED, FAILED, set()),
        (PASSED, FAILED, {FAILS}),
        (PASSED, SKIPPED, {FAILS}),
        (FAILED, PASSED, {PASSES}),
        (SKIPPED, PASSED, {PASSES}),
    ],
)
def test_a_difference_is_what_passes_in_one_place_only(gloo, here, found):
    assert differences("cpu-3", "process", {"test_a": gloo}, {"test_a": here}) == found


def test_what_did_not_run_fails_here():
    assert differences("cpu-3", "process", {"test_a": PASSED}, {}) == {FAILS}


@pytest.mark.parametrize(
    ("ranks", "whole"),
    [
        ([PASSED, PASSED], PASSED),
        ([SKIPPED, SKIPPED], SKIPPED),
        ([PASSED, FAILED], FAILED),
        ([SKIPPED, FAILED], FAILED),
        ([PASSED, SKIPPED], Outcome(Status.FAILED, "some ranks skip it")),
    ],
)
def test_the_outcome_of_all_ranks(ranks, whole):
    assert of_all(ranks) == whole


def test_the_table_made_anew_keeps_reasons_and_what_did_not_run():
    other = Exceptional("cpu-8", "process", "test_b", Direction.FAILS_HERE)
    gone = Exceptional("cpu-3", "process", "test_c", Direction.FAILS_HERE)
    known = {FAILS: "why", other: "other", gone: "gone"}
    assert made_anew(known, [FAILS, PASSES], [("cpu-3", "process")]) == {FAILS: "why", other: "other", PASSES: ""}


def test_what_is_new_and_what_is_gone_is_told_of_the_suites_and_ways_that_ran():
    of_another_way = Exceptional("cpu-3", "thread", "test_a", Direction.FAILS_HERE)
    assert changes([FAILS, of_another_way], [FAILS], [("cpu-3", "process")]) == ([], [])
    assert changes([of_another_way], [FAILS], [("cpu-3", "process")]) == ([FAILS], [])
    assert changes([FAILS, of_another_way], [], [("cpu-3", "process")]) == ([], [FAILS])
    assert changes([FAILS], [PASSES], [("cpu-3", "process")]) == ([PASSES], [FAILS])


def test_records_are_read_as_they_were_written(tmp_path):
    reasons = {FAILS: "why", Exceptional("cpu-3", "thread", "test_a", Direction.FAILS_HERE): "why", PASSES: ""}
    save_exceptions(reasons, tmp_path / "exceptions.toml")
    assert load_exceptions(tmp_path / "exceptions.toml") == reasons
    save_gloo({"cpu-3": {"test_a": PASSED, "test_b": FAILED, "test_c": SKIPPED}}, tmp_path / "gloo.json")
    assert load_gloo(tmp_path / "gloo.json") == {"cpu-3": {"test_a": PASSED, "test_b": FAILED}}


def test_a_text_is_cut_to_its_first_line():
    assert first_line("\n  one \ntwo") == "one"
    assert first_line("") == ""


def test_the_page_is_made_of_the_records():
    # If not: python -m tests.conformance --write
    assert page.shown() == page.results(load_gloo(), load_exceptions())


def test_every_exception_has_a_reason_and_is_of_a_test_that_ran_on_gloo():
    gloo = load_gloo()
    assert gloo.keys() == SUITES.keys()
    for each, reason in load_exceptions().items():
        assert reason, f"{each} is unexplained: write its reason into tests/conformance/exceptions.toml"
        assert each.way in WAYS
        recorded = gloo[each.suite].get(each.test, SKIPPED).status
        assert (recorded is Status.PASSED) == (each.direction is Direction.FAILS_HERE), each
