"""Running scenarios from Python: defaults, replay, and arguments it cannot work with."""

import dataclasses

import pytest

from ddpsim import Code, Crash, Verdict
from ddpsim.scenarios import Expectation, Scenario, load, replay_scenario, run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import finds


def returns_its_rank(rank):
    return rank


def test_scenario_by_name_and_by_value_are_the_same():
    assert str(run_scenario("rank-crash")) == str(run_scenario(load("rank-crash")))


def test_arguments_and_faults_reach_the_program():
    def program(rank, first, second):
        import torch.distributed as dist

        dist.barrier()
        return first, second

    scenario = Scenario("own", "", program, args=(1, 2), faults=(Crash(0, 0),), world_size=2)
    result = run_scenario(scenario)
    assert result.returns[1] is None
    assert list(result.errors) == [0]
    again = replay_scenario(scenario, result.schedule)
    assert str(again) == str(result)


@pytest.mark.parametrize(
    ("expected", "is_met"),
    [
        (Expectation(), False),
        (Expectation(Verdict.FAIL), True),
        (Expectation(Verdict.FAIL, Code.DEADLOCK_CYCLE, (0, 1, 2, 3)), True),
        (Expectation(Verdict.FAIL, Code.DEADLOCK_CYCLE, lambda world_size: tuple(range(world_size))), True),
        (Expectation(Verdict.FAIL, Code.DEADLOCK_CYCLE, (0, 1)), False),
        (Expectation(Verdict.FAIL, Code.DEADLOCK_MISSING_RANK, (0, 1, 2, 3)), False),
    ],
)
def test_expectation_of_a_run_that_failed(expected, is_met):
    assert expected.is_met_by(run_scenario("send-send")) is is_met


def test_expectation_of_a_run_that_passed():
    result = run_scenario(Scenario("own", "", returns_its_rank))
    passes, fails = Expectation(), Expectation(Verdict.FAIL)
    cycle = Expectation(Verdict.FAIL, Code.DEADLOCK_CYCLE, (0, 1))
    assert [each.is_met_by(result) for each in (passes, fails, cycle)] == [True, False, False]
    assert [each.text(4) for each in (passes, fails, cycle)] == ["pass", "fail", "fail, deadlock.cycle, ranks 0, 1"]


def test_expected_is_judged_by_engine():
    clean = Expectation(is_clean=True)
    bug = dataclasses.replace(load("send-send"), expected_under_ddp=clean)
    assert bug.expected_by(Engine.TORCH) is bug.expected
    assert bug.expected_by(Engine.DDP) is clean
    assert not bug.expected_by(Engine.DDP).is_met_by(run_scenario(bug, "ddp"))


def test_clean_is_more_than_a_pass():
    def leaves_a_work(rank):
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(1), async_op=True)

    result = run_scenario(Scenario("own", "", leaves_a_work))
    assert result.verdict is Verdict.PASS
    assert Expectation().is_met_by(result)
    assert not Expectation(is_clean=True).is_met_by(result)
    assert finds(Code.HAZARD_UNWAITED_WORK, ranks=(0, 1, 2, 3)).is_met_by(result)


def test_what_depends_on_the_interleaving_may_come_out_otherwise():
    result = run_scenario("send-send")
    otherwise = finds(Code.DEADLOCK_CYCLE, ranks=(0, 1, 2, 3))
    assert finds(Code.MISMATCH_ORIGIN, ranks=1, shows=3, otherwise=otherwise).is_met_by(result)
    assert not finds(Code.MISMATCH_ORIGIN, ranks=1).is_met_by(result)


def test_a_twin_keeps_the_world_and_not_the_faults():
    bug, twin = load("rank-crash"), load("rank-crash-repaired")
    assert bug.faults
    assert twin.faults == ()
    assert (twin.world_size, twin.tags, twin.reports) == (bug.world_size, bug.tags, bug.reports)
    assert twin.repairs == bug.name
