"""Shrinking scenarios: declared trainings, functions, and what is expected of what is left."""

from dataclasses import replace

import pytest
import torch

from ddpsim import Budget, Code, Crash, Delay, EarlyReturn, UsageError, Verdict
from ddpsim.scenarios import Expectation, load, run_scenario, scenario, shrink_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.saving import save_scenario
from ddpsim.scenarios.files.value_scenarios import scenario_of_program, scenario_of_training, training_of_scenario
from ddpsim.scenarios.fuzzing.shrinking.shrinker import SameFailure, ScenarioCandidate, try_candidate
from ddpsim.scenarios.fuzzing.shrinking.training_passes import (
    PASSES,
    PLAINEST_FIRST,
    DeclaredTraining,
    size_of_training,
)
from ddpsim.scenarios.training.models import NETWORKS
from ddpsim.scenarios.training.training import (
    Action,
    CommunicationHook,
    ExceptionalIterations,
    IterationRule,
    JoinOptions,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Training,
)
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.shrinking.greedy import FailureKind, ShrinkAttempt, ShrinkEnd, shrink_value
from tests.programs.programs import program, received, reduced, sent, waited

LARGE = Training(
    (NetworkChoice("branches"), NetworkChoice("mlp", {"hidden": (6, 5)})),
    (3, 2, 4),
    rows=(5, 4, 6),
    engine_options={"find_unused_parameters": True, "bucket_cap_mb": 0.001},
    join=JoinOptions(divide_by_initial_world_size=False),
    optimizer=OptimizerChoice(OptimizerName.ADAM, 0.01),
    communication_hook=CommunicationHook.FP16_COMPRESS,
    reduces_loss=True,
    exceptions=(
        ExceptionalIterations((0, 2), (1, 3), uses=("left",)),
        ExceptionalIterations(None, (2,), Action.ACCUMULATE),
    ),
    seed=5,
    dtype=torch.float64,
)


def least(declared, is_needed):
    """The simplest training that still has what is needed."""
    return shrink_value(
        declared,
        PASSES,
        lambda tried: ShrinkAttempt(tried if is_needed(tried) else None),
        size=size_of_training,
        key=repr,
        budget=Budget(executions=10_000),
    ).value


SMALLEST = Training(iterations=IterationRule(0), rows=1)


def test_where_nothing_is_needed_nothing_is_left():
    assert least(DeclaredTraining(LARGE, 3, (Crash(1, 2),)), lambda tried: True) == DeclaredTraining(SMALLEST, 1)


@pytest.mark.parametrize(
    ("is_needed", "left"),
    [
        (lambda training: len(training.networks) == 2, {"networks": (NetworkChoice(), NetworkChoice())}),
        (lambda training: training.join is not None, {"join": JoinOptions()}),
        (lambda training: training.join == JoinOptions(False), {"join": JoinOptions(False)}),
        (lambda training: training.communication_hook, {"communication_hook": CommunicationHook.ALLREDUCE}),
        (lambda training: training.reduces_loss, {"reduces_loss": True}),
        (lambda training: "bucket_cap_mb" in training.engine_options, {"engine_options": {"bucket_cap_mb": 0.001}}),
        (lambda training: training.dtype is torch.float64, {"dtype": torch.float64}),
        (lambda training: training.seed != 0, {"seed": 5}),
        (lambda training: training.optimizer.learning_rate < 0.05, {"optimizer": OptimizerChoice(learning_rate=0.01)}),
        (
            lambda training: any(each.name == "mlp" for each in training.networks),
            {"networks": (NetworkChoice("mlp"),)},
        ),
        (
            lambda training: any(each.uses for each in training.exceptions),
            {"networks": (NetworkChoice("branches"),), "exceptions": (ExceptionalIterations(uses=("left",)),)},
        ),
        (
            lambda training: any(each.action for each in training.exceptions),
            {"exceptions": (ExceptionalIterations(action=Action.ACCUMULATE),)},
        ),
    ],
)
def test_what_is_needed_is_left_and_nothing_else(is_needed, left):
    found = least(DeclaredTraining(LARGE, 3), lambda tried: is_needed(tried.training))
    assert found == DeclaredTraining(replace(SMALLEST, **left), 1)


def test_ranks_are_numbered_anew_in_counts_rows_exceptions_and_faults():
    faults = (Delay(0, 1, 2.0), EarlyReturn(2, 3))
    found = least(
        DeclaredTraining(LARGE, 3, faults), lambda tried: 6 in (tried.training.rows, *_tuple(tried.training.rows))
    )
    assert found == DeclaredTraining(replace(SMALLEST, rows=6), 1)
    found = least(
        DeclaredTraining(LARGE, 3, faults), lambda tried: any(isinstance(each, EarlyReturn) for each in tried.faults)
    )
    assert found == DeclaredTraining(SMALLEST, 1, (EarlyReturn(0, 3),))


def _tuple(rows):
    return rows if isinstance(rows, tuple) else ()


def test_iterations_behind_one_that_is_gone_come_earlier():
    left = replace(SMALLEST, iterations=IterationRule(1), exceptions=(ExceptionalIterations(action=Action.ACCUMULATE),))
    found = least(
        DeclaredTraining(LARGE, 3),
        lambda tried: tried.training.action_of_rank(0, 0) is Action.ACCUMULATE and tried.iterations_by_rank[0],
    )
    assert found == DeclaredTraining(left, 1)


def test_a_rule_becomes_smaller_or_what_its_ranks_had():
    declared = DeclaredTraining(Training(iterations=IterationRule(4, 3, 5)), 12)
    assert least(declared, lambda tried: len(set(tried.iterations_by_rank)) > 1) == DeclaredTraining(
        Training(iterations=(0, 1), rows=1), 2
    )
    # Of ranks 0 to 11 one has 4 + 3 * 4; alone, it is rank 0.
    found = least(declared, lambda tried: 16 in tried.iterations_by_rank)
    assert found == DeclaredTraining(Training(iterations=IterationRule(16), rows=1), 1)


def test_all_networks_have_their_place():
    assert sorted(PLAINEST_FIRST) == sorted(NETWORKS)


def test_ways_give_trainings_that_can_be_saved_and_loaded(tmp_path):
    path = tmp_path / "saved.toml"
    for way in PASSES:
        for simpler in way(DeclaredTraining(LARGE, 3)):
            save_scenario(scenario_of_training(simpler.training, simpler.world_size, name="saved"), path)
            assert load(str(path)).world_size == simpler.world_size


# --- scenarios --------------------------------------------------------------------------------------------------------

UNEVEN = Training((NetworkChoice("mlp"),), (3, 2, 3), exceptions=(ExceptionalIterations(None, (1,), Action.SKIP_STEP),))
BUG = scenario_of_training(UNEVEN, 3, name="uneven")


@pytest.mark.parametrize("engine", ["torch", "ddp"])
def test_a_failure_that_is_expected_stays_so(engine, tmp_path):
    expected = Expectation(Verdict.FAIL, Code.DEADLOCK_MISSING_RANK, (1,))
    bug = replace(BUG, expected=expected)
    found = shrink_scenario(bug, engine)
    assert training_of_scenario(found.scenario) == Training(iterations=(0, 1), rows=1)
    assert found.scenario.expected == Expectation(Verdict.FAIL, Code.DEADLOCK_MISSING_RANK, (0,))
    save_scenario(found.scenario, tmp_path / "saved.toml")
    again = load(str(tmp_path / "saved.toml"))
    assert again.engine is Engine(engine)
    assert again.expected.is_met_by(run_scenario(again))


def test_a_failure_that_is_none_in_the_scenarios_eyes_stays_so():
    found = shrink_scenario(BUG)
    assert not found.scenario.expected.is_met_by(found.result)


def test_a_program_keeps_to_what_check_does_not_find():
    # `check` takes the first message by rank, and so does round robin; without that it would be one of two ranks.
    one, other = sent("a", 0), sent("b", 0, dtype="float64")
    bug = scenario_of_program(program([received("a", ANY_SOURCE)], [one], [other]), name="arrival", choices=(2,))
    found = shrink_scenario(bug)
    assert (found.size.ranks, found.scenario.choices) == (3, (2,))
    expected = replace(bug, expected=Expectation(Verdict.FAIL, Code.MISMATCH_DTYPE, (0, 2)))
    found = shrink_scenario(expected)
    assert (found.size.ranks, found.size.steps, found.scenario.choices) == (2, 2, ())
    assert found.scenario.expected.is_met_by(found.result)


def test_a_function_has_fewer_ranks_and_switches():
    found = shrink_scenario(
        replace(load("results-taken-in-order-of-arrival"), world_size=6, choices=(0, 1, 4, 3, 2, 1))
    )
    assert found.scenario.world_size == 3
    assert found.size.switches == 1
    assert found.is_minimal
    assert run_scenario(found.scenario).findings == found.result.findings


def test_a_function_keeps_to_the_ranks_that_it_is_made_for():
    bug = load("uneven-inputs-without-join")
    assert shrink_scenario(replace(bug, world_size=8)).scenario.world_size == bug.min_world_size == 2
    assert shrink_scenario(replace(bug, world_size=8, min_world_size=5)).scenario.world_size == 5
    assert shrink_scenario(replace(bug, min_world_size=4)).executions == 0


def test_a_function_with_many_ranks():
    @scenario(min_world_size=1, world_size=100)
    def fails_from_37_ranks_on(rank):
        """It needs many ranks."""
        assert torch.distributed.get_world_size() < 37

    found = shrink_scenario(fails_from_37_ranks_on)
    assert found.scenario.world_size == 37


def test_what_would_be_refused_does_not_fail():
    refused = scenario_of_training(Training((NetworkChoice("mlp", {"hidden": (0,)}),)), 2, name="refused")
    same = SameFailure(FailureKind(Code.RANK_ERROR, UsageError), Engine.TORCH, is_surprise=False)
    assert try_candidate(ScenarioCandidate(replace(refused, faults=(Crash(5, 0),))), same).failed is None


def test_another_program_is_tried_under_several_schedules():
    one, other = sent("a", 0), sent("b", 0, dtype="float64")
    arrival = scenario_of_program(program([received("a", ANY_SOURCE)], [one], [other]), name="arrival")
    same = SameFailure(FailureKind(Code.MISMATCH_DTYPE, None), Engine.TORCH, is_surprise=True)
    assert try_candidate(ScenarioCandidate(arrival, has_own_schedule=False), same) == ShrinkAttempt(None)
    lost = replace(arrival, choices=(0, 0, 0, 0, 1))
    assert try_candidate(ScenarioCandidate(lost), same) == ShrinkAttempt(None)
    found = try_candidate(ScenarioCandidate(lost, has_own_schedule=False), same)
    assert found.failed is not None
    assert found.executions > 1


def test_what_leaves_nothing_open_is_run_once_more_only():
    calls = scenario_of_program(program(*[waited(reduced("a"))] * 3), name="calls", choices=(1, 2))
    same = SameFailure(FailureKind(Code.DEADLOCK_CYCLE, None), Engine.TORCH, is_surprise=True)
    assert try_candidate(ScenarioCandidate(calls, has_own_schedule=False), same) == ShrinkAttempt(None, 2)


def test_dpor_begins_with_round_robin():
    calls = scenario_of_program(program(*[waited(reduced("a"))] * 3), name="calls")
    policy = Dpor(3).next_policy()
    assert run_scenario(calls, policy=policy).trace.digest() == run_scenario(calls).trace.digest()


def test_what_the_oracle_can_judge_does_not_become_a_mistake_that_fails_by_itself():
    # Leaving out find_unused_parameters would fail with the same code, for a reason of its own.
    training = Training(
        (NetworkChoice("branches"),),
        (4, 4, 4),
        engine_options={"find_unused_parameters": True},
        reduces_loss=True,
        exceptions=(
            ExceptionalIterations(None, (2,), Action.SKIP_BACKWARD),
            ExceptionalIterations(None, (3,), Action.ACCUMULATE),
            ExceptionalIterations((1,), (3,), uses=("left",)),
        ),
    )

    shrunk = shrink_scenario(scenario_of_training(training, 3, name="skipped"))

    assert shrunk.result.findings[0].code is Code.MISMATCH_SHAPE
    assert shrunk.scenario.reference is not None
    smallest = training_of_scenario(shrunk.scenario)
    assert smallest is not None
    assert smallest.engine_options == {"find_unused_parameters": True}
    assert (shrunk.scenario.world_size, smallest.iterations) == (2, IterationRule(2))


@pytest.fixture
def passes_in(monkeypatch):
    """In this of its runs the scenario passes, as if by chance; those of single steps are not counted."""

    def arrange(number):
        runs = []

        def run(*each, **options):
            if "policy" in options:  # a simpler scenario is tried
                return run_scenario(*each, **options)
            runs.append(each)
            return run_scenario("join-baseline" if len(runs) == number else each[0], **options)

        monkeypatch.setattr("ddpsim.scenarios.fuzzing.shrinking.shrinker.run_scenario", run)

    return arrange


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", ["send-send", "uneven-inputs-without-join"])
def test_a_failure_that_does_not_come_again_is_flaky(passes_in, number, name):
    passes_in(number)
    shrunk = shrink_scenario(replace(load(name), world_size=6))
    assert (shrunk.end, shrunk.is_minimal) == (ShrinkEnd.FLAKY, False)
    assert shrunk.result.verdict is Verdict.PASS
    assert bool(shrunk.tries) is (number == 3)
    assert shrunk.scenario.expected == load(name).expected
