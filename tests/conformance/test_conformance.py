"""All of torch's tests that run here, each way: what differs from gloo is in the table, and the reverse."""

from collections import Counter

import pytest

from tests.conformance.records import differences, load_exceptions, load_gloo
from tests.conformance.running import run_suite
from tests.conformance.suites import SUITES
from tests.conformance.ways import WAYS

pytestmark = pytest.mark.tier("nightly")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("suite", SUITES)
def test_what_differs_is_in_the_table(suite, way):
    _compare(suite, way, alone=False)


@pytest.mark.parametrize("way", ["process", "thread"])
@pytest.mark.parametrize("suite", SUITES)
def test_alone_as_after_its_predecessors(suite, way):
    _compare(suite, way, alone=True)


def _compare(suite, way, *, alone):
    pytest.importorskip("expecttest")
    gloo = load_gloo()[suite]
    outcomes = run_suite(SUITES[suite], way, only=gloo, alone=alone)
    found = differences(suite, way, gloo, outcomes)
    expected = {each for each in load_exceptions() if (each.suite, each.way) == (suite, way)}
    new = sorted((each.test, each.direction.value, outcomes.get(each.test)) for each in found - expected)
    gone = sorted((each.test, each.direction.value) for each in expected - found)
    assert not new, new
    assert not gone, f"remove them by python -m tests.conformance --suite {suite} --way {way} --write: {gone}"
    assert Counter(outcome.status.value for outcome in outcomes.values())["passed"] > 0
