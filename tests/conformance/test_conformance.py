"""All of torch's tests that run here, each way: what differs from gloo is in the table, and the reverse."""

import shutil
from collections import Counter

import pytest

from tests.conformance.outcome import Outcome, Status
from tests.conformance.records import changes, differences, load_exceptions, load_gloo
from tests.conformance.running import run_suite
from tests.conformance.suites import COMPILES, SUITES
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


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize("way", ["process", "thread"])
def test_what_compiles_passes_here_as_on_gloo(way):
    pytest.importorskip("expecttest")  # on gloo: python -m tests.conformance.worker gpu-4 real --only NAME
    assert run_suite(SUITES["gpu-4"], way, only=[COMPILES]) == {COMPILES: Outcome(Status.PASSED)}


def _compare(suite, way, *, alone):
    pytest.importorskip("expecttest")
    gloo = load_gloo()[suite]
    outcomes = run_suite(SUITES[suite], way, only=gloo, alone=alone)
    new, gone = changes(load_exceptions(), differences(suite, way, gloo, outcomes), [(suite, way)])
    assert not new, [(each.test, each.direction.value, outcomes.get(each.test)) for each in new]
    assert not gone, f"remove them by python -m tests.conformance --suite {suite} --way {way} --write: {gone}"
    assert Counter(outcome.status.value for outcome in outcomes.values())["passed"] > 0
