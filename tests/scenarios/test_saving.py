"""Scenarios as files: what is written is read as the same, and what is wrong with a file is told in one line."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim import Code, Crash, Delay, EarlyReturn, UsageError, Verdict
from ddpsim.scenarios import finds, load, run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.saving import save_scenario, scenario_as_toml
from ddpsim.scenarios.files.value_scenarios import (
    program_of_scenario,
    scenario_of_program,
    scenario_of_training,
    training_of_scenario,
)
from ddpsim.scenarios.fuzzing.strategies import trainings
from ddpsim.scenarios.training.training import Action, ExceptionalIterations, IterationRule, NetworkChoice, Training
from ddpsim.simulator.programs.program import Group, Issue, Program, Wait
from tests.agreement.labelled import labelled
from tests.kit.own_programs import RACY
from tests.tiers import sweep

SUM = Issue("a", "all_reduce", shapes=((4,),), dtype="float32", reduction="SUM")
EXTRA_CALL = Program(2, (), ((), (SUM, Wait("a"))))


@pytest.fixture
def saved(tmp_path):
    """Write a scenario, or a text, and load it."""

    def load_again(scenario):
        path = tmp_path / "saved.toml"
        if isinstance(scenario, str):
            path.write_text(scenario, encoding="utf-8")
        else:
            save_scenario(scenario, path)
        return load(str(path))

    return load_again


@settings(max_examples=30)
@given(trainings(), st.lists(st.integers(0, 3)).map(tuple), st.sampled_from(Engine))
def test_every_drawn_training_is_read_as_it_was_written(tmp_path_factory, drawn, choices, engine):
    training, world_size = drawn
    path = tmp_path_factory.mktemp("saved") / "drawn.toml"

    save_scenario(scenario_of_training(training, world_size, name="drawn", engine=engine, choices=choices), path)
    read = load(str(path))

    assert replace(training_of_scenario(read), exceptions=()) == replace(training, exceptions=())
    assert what_ranks_do(training_of_scenario(read), world_size) == what_ranks_do(training, world_size)
    assert (read.world_size, read.engine) == (world_size, engine)
    assert read.choices == _without_zeros_at_the_end(choices)
    assert read.reference is not None


def what_ranks_do(training, world_size):
    networks = [training.make_network(index) for index in range(len(training.networks))]
    return {
        (rank, iteration): (
            training.action_of_rank(rank, iteration),
            [training.branches_used(rank, iteration, each) for each in networks],
        )
        for rank in range(world_size)
        for iteration in range(training.iteration_count(rank))
    }


def _without_zeros_at_the_end(choices):
    while choices and not choices[-1]:
        choices = choices[:-1]
    return choices


@pytest.mark.parametrize("seed", sweep(range(60), lambda seed: seed < 15))
def test_every_drawn_program_is_read_as_it_was_written_and_comes_to_what_the_check_finds(saved, seed):
    program = labelled(seed).program

    read = saved(scenario_of_program(program, name="drawn"))

    assert program_of_scenario(read) == program
    assert read.expected.is_met_by(run_scenario(read))


def test_what_no_rank_comes_to_is_left_out(saved):
    training = Training(
        iterations=(1, 3),
        exceptions=(
            ExceptionalIterations((0,), (1, 2), Action.SKIP),
            ExceptionalIterations((1,), (2, 5), Action.SKIP),
            ExceptionalIterations(None, None, Action.ACCUMULATE),
        ),
    )

    read = training_of_scenario(saved(scenario_of_training(training, 2, name="x")))

    assert read.exceptions == (
        ExceptionalIterations((1,), (2,), Action.SKIP),
        ExceptionalIterations(None, None, Action.ACCUMULATE),
    )


def test_rules_faults_expectations_and_words_are_kept(saved):
    scenario = replace(
        scenario_of_training(
            Training((NetworkChoice("mlp", {"hidden": (3, 2)}),), IterationRule(2, 1, 3)), 4, name="x"
        ),
        about="rank 1 ends early\n\nnobody told it",
        expected=finds(Code.DEADLOCK_MISSING_RANK, 1),
        expected_under_ddp=finds(Code.RANK_ERROR, (0, 2)),
        reference=None,
        faults=(Crash(0, 1, "boom"), Delay(1, 0, 2.5), EarlyReturn(2, 3)),
        tags=("a", "b"),
        reports=("somewhere#1",),
    )

    read = saved(scenario)

    kept = ("about", "expected", "expected_under_ddp", "faults", "tags", "reports", "args", "reference", "world_size")
    assert [getattr(read, field) for field in kept] == [getattr(scenario, field) for field in kept]


def test_a_program_has_one_step_a_line():
    groups = (Group("g1", (0, 1)),)
    text = scenario_as_toml(
        scenario_of_program(replace(EXTRA_CALL, groups=groups), name="x"), summary="a call too many"
    )

    assert (
        text
        == """ddpsim = 1
summary = "a call too many"
world_size = 2

[[group]]
name = "g1"
ranks = [0, 1]

[[rank]]
steps = []

[[rank]]
steps = [
    {issue = "a", operation = "all_reduce", shapes = [[4]], dtype = "float32", reduction = "SUM"},
    {wait = "a"},
]
"""
    )


def test_a_program_is_judged_by_what_the_file_expects(saved):
    text = scenario_as_toml(scenario_of_program(EXTRA_CALL, name="x"))

    found, passes = saved(text), saved(text + "\n[expect]\n")
    result = run_scenario(found)

    assert (result.verdict, result.findings[0].code) == (Verdict.FAIL, Code.DEADLOCK_MISSING_RANK)
    assert found.expected.is_met_by(result)
    assert not passes.expected.is_met_by(result)


# --- another scenario, and schedules ----------------------------------------------------------------------------------


def test_a_function_beside_the_file_runs_under_the_schedule(saved, tmp_path):
    (tmp_path / "own.py").write_text(RACY)
    text = 'summary = "x"\nscenario = "own.py:racy"\nworld_size = 3\n'

    passing, failing = saved(text), saved(text + 'schedule = "1.1"\n')

    assert run_scenario(passing).verdict is Verdict.PASS
    assert run_scenario(failing).findings[0].code is Code.RANK_ERROR
    assert run_scenario(failing, policy="round_robin").verdict is Verdict.PASS


def test_a_scenario_by_its_name_expects_what_that_one_does_unless_the_file_says(saved):
    text = scenario_as_toml(replace(load("uneven-inputs-without-join"), world_size=3, choices=(0, 1)))

    own, other = saved(text), saved(text + "\n[expect]\n")

    assert 'scenario = "uneven-inputs-without-join"' in text
    assert (own.world_size, own.choices) == (3, (0, 1))
    assert own.expected.is_met_by(run_scenario(own))
    assert other.expected.code is None


def test_the_engine_of_the_file_runs_it_and_stands_in_no_command(saved):
    scenario = replace(scenario_of_training(Training(), 2, name="x"), engine=Engine.DDP)

    own = run_scenario(saved(scenario))
    other = run_scenario(saved(scenario), "torch")

    assert "--engine" not in str(own.replay)
    assert str(other.replay).endswith("--engine torch")


# --- bad files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ddpsim = 2", "ddpsim is 2, expected 1, the version that this ddpsim reads: use the ddpsim that saved"),
        ("ddpsim = true", "ddpsim is True, expected 1"),
        ('schedule = "0x1.z"', "schedule is '0x1.z', expected choices as in a replay token: write one such as"),
        ('schedule = "0x99999999999"', "schedule is '0x99999999999', expected choices"),
        ('runs_on = "nccl"', "runs_on is 'nccl', expected one of torch, ddp"),
        ('scenario = "send-send"\n[[rank]]\nsteps = []', "rank cannot be combined with `scenario`"),
        ('scenario = "no-such-one"', "scenario is 'no-such-one', expected a name"),
        (
            'scenario = "saved.toml"',
            "scenario is 'saved.toml', expected a name in `ddpsim list`, FILE.py:FUNCTION or a program",
        ),
        ('scenario = "send-send"\nworld_size = 1', "world size is 1, send-send expects 2"),
        ("[[rank]]\n[[rank]]\nsteps = 3", "ranks[0]: found None, expected a list"),
        ('[[rank]]\nsteps = [{wait = "a"}]', "wait"),
        ('[[rank]]\nsteps = [{issue = "a"}]', "operation: found None, expected a text"),
        ("[[rank]]\nsteps = []\nstep = []", "rank[0].step is not a known key, expected one of steps"),
        ("world_size = 3\n[[rank]]\nsteps = []", "ranks"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(saved, text, told):
    with pytest.raises(UsageError, match=r"saved\.toml") as caught:
        saved(f'summary = "x"\n{text}\n')

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="cannot be written"):
        save_scenario(scenario_of_program(EXTRA_CALL, name="x"), tmp_path / "file" / "below.toml")
