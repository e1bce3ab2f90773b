"""The strategies: what they draw is valid, each kind of thing occurs, and hypothesis shrinks to the plainest of it."""

import importlib
import sys
from collections import Counter
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, find, settings

from ddpsim import Pct, UsageError, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.value_scenarios import program_of_scenario, training_of_scenario
from ddpsim.scenarios.fuzzing.batch import draw_values
from ddpsim.scenarios.fuzzing.strategies import broken_programs, policies, programs, scenarios, schedules, trainings
from ddpsim.scenarios.fuzzing.strategies.programs import BreakKind
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from ddpsim.scenarios.training.oracle import check_has_defined_result
from ddpsim.scenarios.training.training import Action, NetworkChoice, OptimizerName, Training
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.operations import IN_PROGRAMS
from ddpsim.simulator.policies.named import RandomWalk
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.programs.check import check_program
from ddpsim.simulator.programs.program import DTYPES, Issue, Program, Wait
from ddpsim.simulator.programs.validation import validate_program
from tests.tiers import sweep

DRAWS = 300


def drawn(strategy, count=DRAWS):
    """So many values, the same ones each time."""
    values = []
    draw_values(strategy, 0, count, values.append)
    return values


@cache
def healthy():
    return drawn(programs())


@cache
def broken():
    return drawn(broken_programs())


@cache
def trained(for_torch):
    return drawn(trainings(for_torch=for_torch))


def least(strategy, condition):
    """What hypothesis shrinks the first value of that kind to."""
    return find(
        strategy,
        condition,
        settings=settings(
            max_examples=5000,
            database=None,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


def issues(program):
    return [step for steps in program.ranks for step in steps if isinstance(step, Issue)]


def features(program):
    """What a program has that others have not."""
    yield f"{program.world_size} ranks"
    yield f"{len(program.groups)} groups"
    for steps in program.ranks:
        names = [step.name for step in steps if isinstance(step, Issue)]
        waits = [step.name for step in steps if isinstance(step, Wait)]
        yield from ["never waited for"] * (set(names) != set(waits))
        yield from ["waited for in another order"] * ([name for name in names if name in waits] != waits)
    for issue in issues(program):
        yield issue.operation
        yield str(issue.dtype)
        shapes = {"a scalar": (), "empty": (0,), "large": (3001,)}
        yield from (name for name, shape in shapes.items() if shape in issue.shapes)
        yield from ["two dimensions"] * any(len(shape) == 2 for shape in issue.shapes)
        yield from ["from any source"] * (issue.peer == ANY_SOURCE)


def test_programs_are_valid_and_nothing_is_wrong_with_them():
    for program in healthy():
        validate_program(program)
        assert check_program(program).verdict is Verdict.PASS


def test_each_kind_of_program_occurs():
    counted = Counter(feature for program in healthy() for feature in set(features(program)))
    expected = {"2 ranks", "3 ranks", "4 ranks", "0 groups", "1 groups", "2 groups", *IN_PROGRAMS, *DTYPES}
    expected |= {"never waited for", "waited for in another order", "from any source"}
    expected |= {"a scalar", "empty", "large", "two dimensions"}
    assert {name for name in expected if counted[name] < 10} == set()


def test_programs_keep_to_what_is_asked_for():
    for program in drawn(programs(min_ranks=1, max_ranks=6, min_rounds=2, max_rounds=3), 100):
        validate_program(program)
        assert 1 <= program.world_size <= 6
        assert len({issue.name for issue in issues(program)}) in (2, 3)
    with pytest.raises(UsageError, match=r"^programs of 4 to 2 ranks are asked for, expected a range from 1 on: "):
        drawn(programs(min_ranks=4, max_ranks=2), 1)


def call(name, **options):
    return Issue(name, options.pop("operation", "all_reduce"), shapes=((1,),), dtype="float32", **options)


PLAIN = call("c0", reduction="SUM")


def test_the_least_programs():
    assert least(programs(), lambda program: True) == Program(2, (), ((), ()))
    assert least(programs(), issues) == Program(2, (), ((PLAIN, Wait("c0")), (PLAIN, Wait("c0"))))
    send, receive = call("c0", operation="send", peer=1), call("c0", operation="recv", peer=0)
    assert least(programs(), lambda program: any(issue.operation == "recv" for issue in issues(program))) == Program(
        2, (), ((send, Wait("c0")), (receive, Wait("c0")))
    )


def test_broken_programs_are_valid_and_of_each_kind_and_most_fail():
    assert {kind for _, kind in broken()} == set(BreakKind) - {BreakKind.NONE}
    for program, _ in broken():
        validate_program(program)
    failing = sum(check_program(program).verdict is Verdict.FAIL for program, _ in broken())
    assert failing > 0.8 * DRAWS


def test_the_least_broken_program():
    program, kind = least(broken_programs(), lambda chosen: check_program(chosen[0]).verdict is Verdict.FAIL)
    assert kind is BreakKind.MISSING
    assert sorted(program.ranks, key=len) == [(), (PLAIN, Wait("c0"))]


def test_schedules_have_few_switches_or_many_and_policies_are_of_each_kind():
    assert {type(policy) for policy in drawn(policies(), 50)} == {GuidedPolicy, RandomWalk, Pct}
    chosen = drawn(schedules(max_choices=50))
    assert all(len(choices) <= 50 and all(0 <= choice <= 3 for choice in choices) for choices in chosen)
    switches = [sum(map(bool, choices)) for choices in chosen]
    assert switches.count(0) >= 3
    assert sum(0 < count <= 4 for count in switches) >= 60
    assert sum(count > 4 for count in switches) >= 30
    assert sum(len(choices) > 30 for choices in chosen) >= 60


def test_the_least_schedules():
    assert least(schedules(), lambda choices: True) == ()
    assert least(schedules(), lambda choices: sum(map(bool, choices)) == 2) == (1, 1)
    assert least(schedules(), lambda choices: len(choices) > 3 and choices[3]) == (0, 0, 0, 1)


@pytest.mark.parametrize("for_torch", sweep([False, True, "documented"], lambda each: each is False))
def test_trainings_have_a_meaning(for_torch):
    for training, world_size in trained(for_torch):
        check_has_defined_result(training, world_size)


def training_features(training, world_size):
    """What a training has that others have not."""
    counts = [training.iteration_count(rank) for rank in range(world_size)]
    is_uneven = len(set(counts)) > 1
    last = counts.count(max(counts))
    options = {key for key, value in training.engine_options.items() if value}
    names = [choice.name for choice in training.networks]
    yield from names
    yield from (each.action.value for each in training.exceptions if each.action)
    yield from options
    yield training.optimizer.name.value
    yield str(training.dtype)
    given = {
        "several networks": len(training.networks) > 1,
        "uses": any(each.uses is not None for each in training.exceptions),
        "join": training.join is not None,
        "uneven": is_uneven,
        "rank 0 leaves early": counts[0] < max(counts),
        "a rank without input": 0 in counts and max(counts) > 0,
        "tie": is_uneven and last > 1,
        "by ranks present": is_uneven and training.join and not training.join.divide_by_initial_world_size,
        "accumulation under join": is_uneven and any(e.action == "accumulate" for e in training.exceptions),
        "buffers under join": is_uneven and {"batch_norm", "broadcast_buffers"} <= {*names, *options},
        "sharded": training.optimizer.is_sharded,
        "momentum": training.optimizer.momentum > 0,
        "hook": training.communication_hook is not None,
        "average buffers": training.averages_buffers,
        "loss": training.reduces_loss,
        "rows by rank": isinstance(training.rows, tuple),
    }
    yield from (name for name, is_given in given.items() if is_given)


@pytest.mark.tier("nightly")
def test_every_feature_of_trainings_is_drawn_often():
    chosen = drawn(trainings(for_torch=True), 500)
    counted = Counter(name for each in chosen for name in set(training_features(*each)))
    assert {name: count for name, count in counted.items() if count < 3} == {}
    assert len(counted) >= 40


def excluded(training):
    """What torch's engine cannot do although its documentation does not rule it out."""
    options = training.engine_options
    yield from ["unused under join"] * bool(options["find_unused_parameters"])
    yield from ["sparse under join"] * any(choice.name == "embedding" for choice in training.networks)
    yield from ["sharded under join"] * training.optimizer.is_sharded
    by_present = not training.join.divide_by_initial_world_size
    yield from ["several models by ranks present"] * (by_present and len(training.networks) > 1)
    yield from ["hook by ranks present"] * (by_present and training.communication_hook is not None)
    yield from ["static graph, a rank without a batch"] * (options["static_graph"] and min(training.iterations) == 0)


@pytest.mark.tier("nightly")  # what should be left out fails test_engines.py, which fuzzes torch's engine
def test_what_torch_documents_is_left_in_only_if_asked_for():
    counted = {}
    for for_torch in (True, "documented"):
        joined = [each for each, _ in trained(for_torch) if each.join is not None]
        counted[for_torch] = Counter(name for training in joined for name in excluded(training))
        for training in joined:  # its documentation rules these out
            names = {choice.name for choice in training.networks}
            actions = {each.action for each in training.exceptions}
            assert "sync_batch_norm" not in names
            assert not training.reduces_loss
            assert not actions & {Action.EVALUATE, Action.SKIP_BACKWARD}
    assert counted[True] == {}
    assert len(counted["documented"]) == 6
    assert min(counted["documented"].values()) >= 3


def test_the_least_training():
    training, world_size = least(trainings(), lambda chosen: True)
    assert world_size == 2
    assert training.networks == (NetworkChoice("linear"),)
    assert training.iterations == (1, 1)
    assert training == Training(
        iterations=(1, 1), rows=3, engine_options=training.engine_options, optimizer=training.optimizer
    )
    assert training.optimizer.name is OptimizerName.SGD
    assert not any(value for key, value in training.engine_options.items() if key != "broadcast_buffers")


def test_scenarios_are_of_each_kind_or_of_those_that_are_asked_for():
    chosen = drawn(scenarios(kinds=(Kind.TRAINING,), engines=(Engine.DDP,)), 30)
    assert {(each.name, each.engine) for each in chosen} == {("training", Engine.DDP)}
    chosen = drawn(scenarios(), 120)
    kinds = Counter(scenario.name for scenario in chosen)
    assert set(kinds) == {kind.value for kind in Kind}
    assert kinds[Kind.TRAINING.value] > 40
    assert all((training_of_scenario(each) is None) == (program_of_scenario(each) is not None) for each in chosen)
    assert Counter(each.engine for each in chosen if training_of_scenario(each))[Engine.DDP] > 15
    assert sum(bool(each.choices) for each in chosen) > 80


def test_strategies_still_have_their_old_name():
    for name in ("ddpsim.scenarios.strategies", "ddpsim.scenarios.strategies.whole"):
        sys.modules.pop(name, None)

    with pytest.warns(DeprecationWarning, match=r"is now ddpsim\.scenarios\.fuzzing\.strategies: import from there"):
        old = importlib.import_module("ddpsim.scenarios.strategies")

    assert old.policies is policies
    assert importlib.import_module("ddpsim.scenarios.strategies.whole").Kind is Kind
