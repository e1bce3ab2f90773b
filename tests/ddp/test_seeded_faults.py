"""The suite notices faults: each of a table of small ones, put into the engine in memory, fails the tests it names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tests.ddp.seeding import FAULTS, faulty_text, module_text
from tests.mutants.session import Outcome, Wanted, run_tests

PASSED, FAILED = 0, 1
MODULES = sorted({fault.module for fault in FAULTS})
FILES = sorted({test.partition("::")[0] for fault in FAULTS for test in fault.noticed_by})


def outcome_of(tests: Iterable[str], texts: Mapping[str, str]) -> Outcome:
    """What tests of the engine come to, with other texts in the place of modules, each of which has to be imported."""
    files = {f"ddp/{module}.py": text for module, text in texts.items()}
    outcome = run_tests(Wanted(tuple(f"tests/ddp/{test}" for test in tests), files))
    assert outcome.unused == ()
    return outcome


@pytest.mark.parametrize("module", MODULES)
def test_the_table_fits_the_engine(module):
    for fault in FAULTS:
        if fault.module == module:
            compile(faulty_text(fault), module, "exec")


@pytest.mark.tier("ci")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_noticed(fault):
    outcome = outcome_of(fault.noticed_by, {fault.module: faulty_text(fault)})
    assert outcome.status == FAILED, outcome.text


@pytest.mark.tier("nightly")  # they pass as they are in the default tier, which a fault in the machinery would fail
@pytest.mark.parametrize("file", FILES)
def test_without_a_fault_the_same_tests_pass(file):
    # The same machinery, all modules compiled by it from their own texts.
    tests = sorted({test for fault in FAULTS for test in fault.noticed_by if test.partition("::")[0] == file})
    outcome = outcome_of(tests, {module: module_text(module) for module in MODULES})
    assert outcome.status == PASSED, outcome.text
