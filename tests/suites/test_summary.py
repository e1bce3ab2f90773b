"""What a suite came to, as lines, annotations and SARIF; and what ranks as threads change in modules."""

import importlib
import json
import sys
from types import ModuleType

import pytest
import torch

from ddpsim.scenarios.test_suites.shared_state import ModuleStates
from ddpsim.scenarios.test_suites.summary import (
    SuiteRow,
    SuiteTest,
    annotations,
    sarif,
    suite_test_of_report,
    summary_lines,
)

HANG = SuiteRow("2", "process", "ranks change a, b", codes="deadlock.cycle", at="a.py:3", what="rank 0, 1 wait, 50%")
HAZARD = SuiteRow("4", "thread", hazards="hazard.tensor_in_flight", at="b.py:7", what="too early")


def two_tests():
    rows = [("a.py::test_a", "failed", 2.0, HANG), ("b.py::test_b", "passed", 1.0, HAZARD)]
    return [suite_test_of_report(name, outcome, seconds, row.properties()) for name, outcome, seconds, row in rows]


def test_a_row_survives_as_properties_and_other_reports_have_none():
    assert [each.row for each in two_tests()] == [HANG, HAZARD]
    assert suite_test_of_report("c.py::test_c", "passed", 0.1, [("owner", "me")]) is None


def test_the_lines_count_codes_and_do_not_split_reasons():
    lines = list(summary_lines(two_tests(), is_verbose=True))
    assert lines[0] == "ddpsim: 2 tests on simulated ranks, 1 with ranks as processes"
    assert "  why processes: 1 ranks change a, b" in lines
    assert "  processes: a.py::test_a (ranks change a, b)" in lines
    assert lines[-1] == "  slowest: 2.00 s a.py::test_a, 1.00 s b.py::test_b"


@pytest.mark.parametrize(("most", "extent"), [(3, "3"), (20, "3 to 20")])
def test_the_lines_say_under_how_many_schedules_tests_passed(most, extent):
    rows = [SuiteRow("2", "thread", schedules=f"{count} schedules: {count} passed") for count in (3, most, 9)]
    tests = [
        SuiteTest("a", outcome, 1.0, row) for outcome, row in zip(("passed", "passed", "failed"), rows, strict=True)
    ]
    assert f"  2 tests passed under {extent} schedules each" in list(summary_lines(tests))


def test_annotations_are_errors_for_failures_and_warnings_for_hazards():
    error, warning = annotations(two_tests())
    assert error == "::error file=a.py,line=3,title=deadlock.cycle in a.py%3A%3Atest_a::rank 0, 1 wait, 50%25"
    assert warning.startswith("::warning file=b.py,line=7,title=hazard.tensor_in_flight in ")


def test_sarif_has_a_result_for_each():
    (run,) = json.loads(sarif(two_tests(), "1"))["runs"]
    assert [each["level"] for each in run["results"]] == ["error", "warning"]
    assert [each["id"] for each in run["tool"]["driver"]["rules"]] == ["deadlock.cycle", "hazard.tensor_in_flight"]


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("a_suite")
    made.seen, made.names, made.options = [1], {"a": 1}, type("Options", (), {"__module__": "a_suite", "depth": 1})()
    monkeypatch.setitem(sys.modules, "a_suite", made)
    return made


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("module.seen.append(2)", "a_suite.seen"),
        ("module.names['a'] = 2", "a_suite.names"),
        ("module.options.depth = 2", "a_suite.options.depth"),
        ("module.later = 1", "a_suite.later"),
        ("del module.seen", "a_suite.seen"),
    ],
)
def test_what_ranks_change_in_a_module_is_named_and_taken_back(module, change, name):
    states = ModuleStates()
    exec(change, {"module": module})
    assert states.take_back() == [name]
    assert (module.seen, module.names, vars(module.options), hasattr(module, "later")) == ([1], {"a": 1}, {}, False)
    assert ModuleStates().take_back() == []


def test_what_ranks_patch_in_torch_is_named_and_taken_back(monkeypatch):
    monkeypatch.setattr(torch.autograd.Function, "apply", torch.autograd.Function.__dict__["apply"])
    states, original = ModuleStates(), torch.autograd.Function.__dict__["apply"]
    torch.autograd.Function.apply = None
    assert states.take_back() == ["torch.autograd.Function.apply"]
    assert torch.autograd.Function.__dict__["apply"] is original


def test_what_ranks_change_in_a_module_that_they_import_is_named_and_taken_back(tmp_path, monkeypatch):
    (tmp_path / "a_late_module.py").write_text("seen = [0]\n\nclass Kept:\n    last = 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    states, finders = ModuleStates(), list(sys.meta_path)
    module = importlib.import_module("a_late_module")
    module.seen.append(1)
    module.Kept.last = 1
    assert states.take_back() == ["a_late_module.seen", "a_late_module.Kept.last"]
    assert (module.seen, module.Kept.last) == ([0], 0)
    assert len(sys.meta_path) == len(finders) - 1
    del sys.modules["a_late_module"]
