"""Comparing what ranks return with a reference: what differs first is named, and rounding is no difference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ddpsim import Code, UsageError, simulate
from ddpsim.ddp import patch_torch_ddp
from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.training.reference import (
    TrainingReference,
    find_divergence,
    find_first_differences,
    reference_by_oracle,
)
from ddpsim.scenarios.training.snapshot import Snapshot, join_model_snapshots, snapshot
from ddpsim.scenarios.training.trainer import run_declared_training
from ddpsim.scenarios.training.training import CommunicationHook, JoinOptions, NetworkChoice, OptimizerChoice, Training
from tests.scenarios.drawing import run

TRAINING = Training((NetworkChoice("linear", {"features": 3, "outputs": 2}),), (3, 3))


def changed(history, moment, kind, name, change):
    """The history, with one tensor of one moment replaced."""
    tensors = dict(getattr(history[moment], kind))
    tensors[name] = change(tensors[name])
    return (*history[:moment], replace(history[moment], **{kind: tensors}), *history[moment + 1 :])


def found(changes, training=TRAINING):
    """The finding for a run whose ranks return what `changes` makes of it."""

    def program(rank):
        history = run_declared_training(rank, training)
        for ranks, *change in changes:
            history = changed(history, *change) if rank in ranks else history
        return history

    result = simulate(program, len(training.iterations))
    result.raise_for_verdict()
    return find_divergence(reference_by_oracle(training, len(training.iterations)), result)


def names(kind="parameters"):
    return list(getattr(snapshot(TRAINING.make_network(0)), kind))


def plus(amount):
    return lambda tensor: tensor + amount


@pytest.mark.parametrize(
    ("kind", "code"),
    [("gradients", Code.DIVERGENCE_GRADIENTS), ("parameters", Code.DIVERGENCE_PARAMETERS)],
)
def test_rank_iteration_and_name_are_told(kind, code):
    name = names()[1]
    finding = found([((1,), 1, kind, name, plus(torch.tensor([0.0, 0.5])))])
    assert (finding.code, finding.ranks) == (code, (1,))
    of = "the gradient of " if kind == "gradients" else ""
    assert finding.summary == f"{of}{name} differs from plain training on rank 1 after iteration 1"
    assert " at [1], expected " in finding.text
    assert [site.file for site in finding.sites] == ["trainer.py"]
    assert str(finding.sites[0]) in finding.text


def test_a_network_recomputes_if_its_training_says_so():
    assert [Training(recomputes=each).make_network(0).recomputes for each in (True, False)] == [True, False]


def test_the_first_iteration_wins_over_the_first_rank_and_gradients_over_parameters():
    finding = found([((0,), 2, "parameters", names()[0], plus(1)), ((1,), 1, "parameters", names()[1], plus(1))])
    assert (finding.ranks, finding.summary.split()[0]) == ((1,), names()[1])
    finding = found([((0,), 1, "parameters", names()[0], plus(1)), ((1,), 1, "gradients", names()[1], plus(1))])
    assert (finding.code, finding.ranks) == (Code.DIVERGENCE_GRADIENTS, (1,))
    assert found([((0, 1), 1, "parameters", names()[0], plus(1))]).ranks == (0, 1)
    assert found([((1,), 3, "parameters", names()[0], plus(1))]).summary.endswith("on rank 1 at the end")


@pytest.mark.parametrize(
    ("kind", "number", "change", "told"),
    [
        ("parameters", 0, lambda tensor: torch.full_like(tensor, float("nan")), "nan at [0, 0]"),
        ("parameters", 0, lambda tensor: torch.full_like(tensor, float("inf")), "inf at [0, 0]"),
        ("gradients", 1, lambda tensor: None, " = none, expected float32[2]"),
        ("parameters", 1, lambda tensor: tensor[:1], "float32[1], expected float32[2]"),
        ("parameters", 1, lambda tensor: tensor.double(), "float64[2], expected float32[2]"),
    ],
    ids=["not a number", "infinity", "missing", "shape", "dtype"],
)
def test_what_cannot_be_compared_differs(kind, number, change, told):
    finding = found([((1,), 1, kind, names()[number], change)])
    assert finding.ranks == (1,)
    assert told in finding.text
    assert names()[number] in finding.text


@pytest.mark.parametrize(("dtype", "noticed", "ignored"), [(torch.float32, 1e-3, 1e-8), (torch.float64, 1e-11, 1e-17)])
def test_the_tolerance_follows_from_the_dtype(dtype, noticed, ignored):
    training = replace(TRAINING, dtype=dtype)
    assert found([((1,), 1, "parameters", names()[0], plus(noticed))], training) is not None
    assert found([((1,), 1, "parameters", names()[0], plus(ignored))], training) is None


def test_a_rank_without_an_iteration_is_not_asked_for_it():
    training = replace(TRAINING, iterations=(1, 3), join=JoinOptions())
    assert found([], training) is None
    assert found([((0,), 1, "parameters", names()[0], plus(1))], training).summary.endswith("on rank 0 at the end")


def test_a_snapshot_is_what_every_rank_returns():
    def program(rank):
        return Snapshot({"weight": torch.tensor([1.0, 2.0 + (rank == 2)])}, {"count": torch.tensor(rank)}, {})

    def alone(world_size):
        return Snapshot({"weight": torch.tensor([1.0, 2.0])}, {"count": torch.tensor(0)}, {})

    result = run_scenario(Scenario("own", "", program, world_size=3, reference=alone))
    [finding] = result.findings
    assert (finding.code, finding.ranks) == (Code.DIVERGENCE_PARAMETERS, (2,))
    assert finding.sites == ()
    assert str(result).splitlines()[-1].startswith("  replay  ddpsim replay own ")


def test_whole_numbers_are_compared_exactly():
    def program(rank):
        return Snapshot({}, {"count": torch.tensor(10**6 + rank)}, {})

    reference = TrainingReference(((Snapshot({}, {"count": torch.tensor(10**6)}, {}),),) * 2)
    finding = find_divergence(reference, simulate(program, 2))
    assert (finding.code, finding.ranks) == (Code.DIVERGENCE_BUFFERS, (1,))


def test_a_run_that_failed_is_not_compared():
    def program(rank):
        raise ValueError("no")

    def alone(world_size):
        raise AssertionError("not asked")

    [finding] = run_scenario(Scenario("own", "", program, reference=alone)).findings
    assert finding.code is Code.RANK_ERROR


def test_snapshots_of_several_models_have_prefixes():
    one, other = (snapshot(torch.nn.Linear(2, 1), 3, gradients=True) for _ in range(2))
    both = join_model_snapshots({"0": one, "1": other})
    assert list(both.parameters) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert both.gradients == {"0.weight": None, "0.bias": None, "1.weight": None, "1.bias": None}
    assert both.iteration == 3
    assert join_model_snapshots({"0": one}) is one


def test_a_snapshot_does_not_change_with_the_model():
    model = torch.nn.Linear(2, 1)
    before = snapshot(model)
    with torch.no_grad():
        model.weight.zero_()
    assert before.parameters["weight"].abs().sum() > 0


def test_the_largest_of_all_tensors_gives_the_tolerance_of_numbers_given_by_hand():
    """What one adds up may nearly cancel, and then its rounding is not that of its result."""

    def alone(weight, bias):
        return Snapshot({"weight": torch.tensor([weight]), "bias": torch.tensor([bias])}, {}, {})

    def off_by(amount):
        return find_divergence(alone(1.0, 1e-6), simulate(lambda rank: alone(1.0, 1e-6 + amount), 2))

    assert off_by(1e-6) is None
    assert off_by(1e-4) is not None


@pytest.mark.parametrize("returned", [None, 3, (None,), {"weight": torch.ones(1)}])
def test_what_is_no_snapshot_cannot_be_compared(returned):
    def alone(world_size):
        return Snapshot({"weight": torch.ones(1)}, {}, {})

    kind = type(returned).__name__
    with pytest.raises(UsageError, match=rf"^rank 0 returned {kind}, expected a Snapshot, or a tuple of them"):
        run_scenario(Scenario("own", "", lambda rank: returned, world_size=2, reference=alone))


def compared(actual, wanted):
    """The finding for a rank that returns `actual` where `wanted` is expected."""
    reference = TrainingReference(((Snapshot({"weight": wanted}, {}, {}),),))
    return find_divergence(reference, simulate(lambda rank: Snapshot({"weight": actual}, {}, {}), 1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_same_overflow_is_no_difference_and_makes_nothing_else_pass(value):
    wanted = torch.tensor([1.0, value, 2.0])
    assert compared(wanted.clone(), wanted) is None
    assert compared(torch.tensor([1.0, value, 2.1]), wanted) is not None
    assert compared(torch.tensor([1.0, 3.0, 2.0]), wanted) is not None
    assert compared(torch.tensor([1.0, -value if value == value else 0.0, 2.0]), wanted) is not None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("hook", [CommunicationHook.FP16_COMPRESS, CommunicationHook.BF16_COMPRESS])
def test_a_compressing_hook_may_be_off_by_what_it_compresses_only(hook, seed):
    training = replace(TRAINING, communication_hook=hook, seed=seed, networks=(NetworkChoice("mlp"),))
    assert run(training, 2, "ddp").findings == ()
    name = next(iter(snapshot(training.make_network(0)).parameters))

    def program(rank):
        with patch_torch_ddp():
            history = run_declared_training(rank, training)
        return changed(history, 0, "gradients", name, lambda gradient: gradient * 1.5)

    result = simulate(program, 1)
    assert find_first_differences(reference_by_oracle(replace(training, iterations=(3,)), 1), result.returns) != []


def test_a_training_whose_numbers_overflow_is_compared_all_the_same():
    training = replace(TRAINING, optimizer=OptimizerChoice(learning_rate=1e19), dtype=torch.float64)
    assert run(training, 2).findings == ()
    wrong = reference_by_oracle(replace(training, rows=(4, 5)), 2)
    assert run(training, 2, reference=wrong).findings[0].code is Code.DIVERGENCE_GRADIENTS
