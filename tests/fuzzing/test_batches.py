"""Batches: pure functions of plan and number, in whatever process; and what is made of their reports."""

import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st

from ddpsim.scenarios import load
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.value_scenarios import scenario_of_program, scenario_of_training
from ddpsim.scenarios.fuzzing.batch import draw_values, run_batch
from ddpsim.scenarios.fuzzing.campaign_report import (
    BatchReport,
    CampaignTotals,
    FailureGroup,
    FuzzFailure,
    merge_batch_reports,
)
from ddpsim.scenarios.fuzzing.judging import run_and_judge, scenario_kind
from ddpsim.scenarios.fuzzing.plan import EXECUTIONS, CampaignPlan
from ddpsim.scenarios.fuzzing.strategies import broken_programs, schedules, trainings
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from ddpsim.scenarios.training.training import Training
from ddpsim.simulator.programs.program import Issue, Program, Wait
from tests.fuzzing.replaying import planted

PROGRAMS = (Kind.PROGRAM, Kind.BROKEN_PROGRAM)


def untimed(report):
    return replace(report, seconds=0.0)


def digest():
    """What is drawn, in a few letters."""
    drawn = []
    draw_values(st.tuples(schedules(), broken_programs(), trainings()), 7, 20, lambda each: drawn.append(repr(each)))
    return sha256("".join(drawn).encode()).hexdigest()


@pytest.mark.tier("nightly")
def test_another_process_draws_the_same():
    # It has not imported what this one has: hypothesis would draw other constants there.
    code = "from tests.fuzzing.test_batches import digest; print(digest())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == digest()


def test_a_batch_is_a_function_of_its_number(monkeypatch):
    monkeypatch.setattr("ddpsim.scenarios.fuzzing.plan.EXECUTIONS", 15)
    plan = CampaignPlan(seed=3, kinds=PROGRAMS)
    report = run_batch(plan, 1)
    assert untimed(pickle.loads(pickle.dumps(report))) == untimed(run_batch(plan, 1))
    assert report.totals.outcomes != run_batch(plan, 2).totals.outcomes
    assert untimed(run_batch(CampaignPlan(seed=4, kinds=PROGRAMS), 0)) == untimed(replace(report, number=0))


def test_a_batch_has_its_share_of_the_executions():
    plan = CampaignPlan(executions=EXECUTIONS + 5, kinds=PROGRAMS)
    assert [plan.executions_of_batch(number) for number in range(3)] == [EXECUTIONS, 5, 0]
    assert CampaignPlan().executions_of_batch(10**6) == EXECUTIONS  # without a limit they have no end
    assert 5 <= run_batch(plan, 1).totals.execution_count <= 7  # a program has up to three runs


def test_kinds_and_engines_are_counted():
    totals = run_batch(CampaignPlan(engines=(Engine.DDP,), kinds=(Kind.TRAINING,), executions=3), 0).totals
    assert set(totals.executions) == {("training", Engine.DDP)}
    assert totals.execution_count == totals.outcomes.total() == 3
    both = run_batch(CampaignPlan(kinds=(Kind.TRAINING,), executions=8), 0).totals
    assert both.executions["training", Engine.DDP] >= both.executions["training", Engine.TORCH] > 0


def test_a_fault_of_the_engine_is_found():
    with planted(only=2):
        report = run_batch(CampaignPlan(engines=(Engine.DDP,), kinds=(Kind.TRAINING,), executions=12), 0)
    assert {group.code for group in report.totals.failures} <= {"divergence.gradients", "divergence.parameters"}
    failures = report.failures
    assert failures
    assert [failure.group for failure in failures] == list(dict.fromkeys(report.totals.failures))
    assert all('runs_on = "ddp"' in failure.text for failure in failures)
    assert all(failure.expected == "pass" for failure in failures)


def test_what_two_engines_differ_in_is_found_though_each_is_near_the_oracle(monkeypatch):
    scenario = scenario_of_training(Training(iterations=(1, 1)), 2, name="training")
    assert [each.failure for each in run_and_judge(scenario, tuple(Engine))] == [None, None]
    difference = SimpleNamespace(code="divergence.parameters", name="weight", found="1", expected="2")
    monkeypatch.setattr("ddpsim.scenarios.fuzzing.judging.find_first_differences", lambda *each: [difference])
    *_, last = run_and_judge(scenario, tuple(Engine))
    assert last.outcome == "engines differ"
    assert last.failure.group == FailureGroup(Engine.DDP, "divergence.parameters", "training")
    assert 'tags = ["compare-engines"]' in last.failure.text


def test_a_program_runs_in_turn_and_twice_under_its_own_schedule(monkeypatch):
    steps = Issue("sum", "all_reduce", shapes=((1,),), dtype="float32", reduction="SUM"), Wait("sum")
    scenario = replace(scenario_of_program(Program(2, (), (steps, steps)), name="program"), choices=(1,))
    assert [each.failure for each in run_and_judge(scenario, ())] == [None] * 3
    monkeypatch.setattr("ddpsim.scenarios.fuzzing.judging._are_findings_consistent", lambda *each: False)
    assert [each.failure is None for each in run_and_judge(scenario, ())] == [True, False, True]


def test_a_program_of_its_own_is_of_the_kind_of_programs(tmp_path):
    (tmp_path / "own.py").write_text("print(1)\n")
    assert scenario_kind(load(str(tmp_path / "own.py"))) == "program"


def report_of(number, *failures):
    totals = CampaignTotals(
        Counter({("training", Engine.DDP): 3}), Counter(pass_=3), Counter(each.group for each in failures)
    )
    return BatchReport(number, totals, failures, 1.0)


def test_reports_are_counted_once_each_in_the_order_of_their_numbers():
    first, second = (FuzzFailure(FailureGroup(Engine.DDP, "stuck", "training"), "fail", "pass", text) for text in "ab")
    other = FuzzFailure(FailureGroup(Engine.TORCH, "stuck", "training"), "fail", "pass", "c")
    reports = [report_of(1, second, other), report_of(0, first), report_of(1, second, other)]
    totals, failures = merge_batch_reports(reports)
    assert totals.execution_count == 6
    assert totals.failures == {first.group: 2, other.group: 1}
    assert failures == (first, other)
    assert merge_batch_reports(reversed(reports)) == (totals, failures)
