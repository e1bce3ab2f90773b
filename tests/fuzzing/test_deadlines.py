"""A campaign's time: runs and batches keep it, and a run that it cuts off is no finding."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ddpsim import Budget, Code, Finding, Verdict
from ddpsim.scenarios import load, run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.fuzzing import judging
from ddpsim.scenarios.fuzzing import named_scenario as named
from ddpsim.scenarios.fuzzing.batch import run_batch
from ddpsim.scenarios.fuzzing.judging import TimeIsUpError, run_and_judge
from ddpsim.scenarios.fuzzing.named_scenario import run_under_few_schedules
from ddpsim.scenarios.fuzzing.plan import CampaignPlan
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from tests.kit.own_programs import ENDLESS

PROGRAMS = CampaignPlan(kinds=(Kind.PROGRAM, Kind.BROKEN_PROGRAM), executions=30)


@pytest.fixture
def endless(tmp_path):
    """It sleeps in virtual time, again and again, so only a budget ends it."""
    (tmp_path / "own.py").write_text(ENDLESS)
    return load(f"{tmp_path / 'own.py'}:endless")


@pytest.fixture
def clock(monkeypatch):
    """The time that judging and a first look go by, which passes as the test says."""

    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now, monotonic=lambda: clock.now)
    for module in (judging, named):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_run_has_the_seconds_that_are_left(monkeypatch, clock):
    budgets = []

    def takes_two_seconds(*each, budget, **options):
        budgets.append(budget.seconds)
        clock.now += 2
        return run_scenario(*each, **options)

    monkeypatch.setattr(judging, "run_scenario", takes_two_seconds)
    scenario = load("join-baseline")
    assert len([*run_and_judge(scenario, (Engine.DDP,), 5.0), *run_and_judge(scenario, (Engine.DDP,), 5.0)]) == 2
    third = run_and_judge(scenario, (Engine.DDP,), 5.0)
    assert next(third).failure is None
    with pytest.raises(TimeIsUpError):
        list(run_and_judge(scenario, (Engine.DDP,), 5.0))
    assert budgets == [5.0, 3.0, 1.0]


def test_a_run_that_is_cut_off_is_no_finding(endless):
    with pytest.raises(TimeIsUpError):
        list(run_and_judge(endless, (Engine.DDP,), time.perf_counter() + 0.05))
    assert run_scenario(endless, budget=Budget(seconds=0.05)).verdict is Verdict.UNKNOWN
    (execution,) = run_and_judge(replace(endless, program=lambda rank: None), (Engine.DDP,))
    assert execution.failure is None


def test_a_batch_ends_when_its_seconds_are_up():
    assert run_batch(PROGRAMS, 0, seconds=0.0).totals.execution_count == 0
    assert 30 <= run_batch(PROGRAMS, 0, seconds=600.0).totals.execution_count <= 32


def test_a_first_look_that_does_not_end_is_one_run(endless):
    look = run_under_few_schedules(endless, Engine.TORCH, 0.05)
    assert look.does_not_end
    assert look.schedules == 1
    assert str(look) == "does not end: no search is possible"


def test_a_first_look_at_what_is_stuck_is_one_run(monkeypatch):
    runs = []

    def stuck(scenario, *each, **options):
        runs.append(options["budget"].seconds)
        result = run_scenario("join-baseline", "ddp")
        return replace(result, findings=(Finding(Code.STUCK, (1,), "rank 1 is blocked"),))

    monkeypatch.setattr(named, "run_scenario", stuck)
    look = run_under_few_schedules(load("join-baseline"), Engine.DDP, 7.0)
    assert runs == [7.0]
    assert look.does_not_end
    assert not look.is_expected


def test_a_first_look_says_what_it_had_time_for(monkeypatch, clock):
    def slow(*each, budget, **options):
        clock.now += 2
        return run_scenario(*each, **options)

    monkeypatch.setattr(named, "run_scenario", slow)
    look = run_under_few_schedules(load("send-send"), Engine.TORCH, 5.0)
    assert str(look) == "fails under every schedule tried (3), as expected: no search is needed"
