"""The oracle: against numbers worked out by hand, and against trainings whose semantics differ in one point."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from ddpsim import Code, UsageError
from ddpsim.scenarios import registry
from ddpsim.scenarios.training import oracle
from ddpsim.scenarios.training.reference import find_first_differences, reference_by_oracle
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
from tests.scenarios.drawing import run
from tests.tiers import sweep

LINEAR = NetworkChoice("linear", {"features": 3, "outputs": 2})
NORMALIZED = NetworkChoice("batch_norm")
MATRIX = "join-matrix"


def by_hand(training, world_size):
    """The weight and bias of a linear model after its steps, in numpy, with the derivative written out."""
    network = training.make_network(0, dtype=torch.float64)
    weight, bias = (parameter.detach().numpy().copy() for parameter in network.parameters())
    counts = [training.iteration_count(rank) for rank in range(world_size)]
    rate = training.optimizer.learning_rate
    kept = {rank: [np.zeros_like(weight), np.zeros_like(bias)] for rank in range(world_size)}
    for iteration in range(max(counts)):
        present = [rank for rank in range(world_size) if iteration < counts[rank]]
        for rank in present:
            batch = training.make_batch(network, rank, iteration).numpy()
            slope = 2 * (batch @ weight.T + bias) / (len(batch) * len(bias))  # of the mean of squares
            kept[rank][0] += slope.T @ batch
            kept[rank][1] += slope.sum(axis=0)
        if training.action_of_rank(0, iteration) is Action.TRAIN:
            by_all = training.join is None or training.join.divide_by_initial_world_size
            divisor = world_size if by_all else len(present)
            weight -= rate * sum(kept[rank][0] for rank in present) / divisor
            bias -= rate * sum(kept[rank][1] for rank in present) / divisor
            for own in kept.values():
                own[0][:], own[1][:] = 0, 0
    return weight, bias


ACCUMULATES = (ExceptionalIterations(iterations=(0, 2), action=Action.ACCUMULATE),)


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(Training((LINEAR,), (3, 3)), id="plain"),
        pytest.param(Training((LINEAR,), (2, 2, 2), rows=(1, 2, 5)), id="rows-differ"),
        pytest.param(Training((LINEAR,), (1, 4, 2), join=JoinOptions()), id="join"),
        pytest.param(Training((LINEAR,), (0, 4, 2), join=JoinOptions(False)), id="join-by-ranks-present"),
        pytest.param(Training((LINEAR,), (4, 4), exceptions=ACCUMULATES), id="accumulation"),
        pytest.param(
            Training((LINEAR,), (4, 3), join=JoinOptions(), exceptions=ACCUMULATES), id="join-inside-a-window"
        ),
    ],
)
def test_numbers_worked_out_by_hand(training):
    training, world_size = replace(training, dtype=torch.float64), len(training.iterations)
    weight, bias = by_hand(training, world_size)
    for history in oracle.train_plainly(training, world_size):
        final = list(history[-1].parameters.values())
        np.testing.assert_allclose(final[0].numpy(), weight, rtol=1e-12)
        np.testing.assert_allclose(final[1].numpy(), bias, rtol=1e-12)


def test_a_history_has_a_moment_for_each_iteration_of_its_rank_and_one_for_the_end():
    histories = oracle.train_plainly(Training((LINEAR,), (1, 3), join=JoinOptions()), 2)
    assert [[moment.iteration for moment in history] for history in histories] == [[0, None], [0, 1, 2, None]]
    assert histories[0][-1].parameters.keys() == histories[1][-1].parameters.keys()
    for name, tensor in histories[0][-1].parameters.items():
        assert torch.equal(tensor, histories[1][-1].parameters[name])


def test_running_statistics_at_the_end_are_those_of_the_highest_of_the_last_ranks():
    training = Training((NORMALIZED,), (2, 1, 2, 1), join=JoinOptions(), dtype=torch.float64)
    histories = oracle.train_plainly(training, 4)
    name = next(name for name in histories[0][-1].buffers if name.endswith("running_mean"))
    kept = [history[-1].buffers[name] for history in histories]
    assert all(torch.equal(own, kept[0]) for own in kept)
    assert torch.equal(kept[0], histories[2][1].buffers[name])
    assert not torch.equal(kept[0], histories[0][1].buffers[name])


# Where the oracle is told something else than the engine, the first number that differs is found: what is compared here
# is what each point of the semantics does to the numbers.
GRADIENTS, PARAMETERS, BUFFERS = Code.DIVERGENCE_GRADIENTS, Code.DIVERGENCE_PARAMETERS, Code.DIVERGENCE_BUFFERS
EVEN, WITH_BUFFERS = Training((LINEAR,), (2, 2)), Training((NORMALIZED,), (2, 2))
COMPRESSED = replace(EVEN, communication_hook=CommunicationHook.FP16_COMPRESS)
ACCUMULATED = (ExceptionalIterations(iterations=(0,), action=Action.ACCUMULATE),)
OTHERWISE = {
    "divisor": (
        Training((LINEAR,), (1, 3), join=JoinOptions(False)),
        {"join": JoinOptions(True)},
        (GRADIENTS, (1,), 1),
    ),
    "learning rate": (EVEN, {"optimizer": OptimizerChoice(learning_rate=0.06)}, (PARAMETERS, (0, 1), 0)),
    "optimizer": (EVEN, {"optimizer": OptimizerChoice(OptimizerName.ADAM)}, (PARAMETERS, (0, 1), 0)),
    "momentum": (EVEN, {"optimizer": OptimizerChoice(momentum=0.9)}, (PARAMETERS, (0, 1), 1)),
    "accumulation": (EVEN, {"exceptions": ACCUMULATED}, (GRADIENTS, (0, 1), 0)),
    "data": (EVEN, {"rows": (4, 5)}, (GRADIENTS, (0, 1), 0)),
    "buffers": (WITH_BUFFERS, {"engine_options": {"broadcast_buffers": False}}, (BUFFERS, (1,), 1)),
    "averaged buffers": (WITH_BUFFERS, {"averages_buffers": True}, (BUFFERS, (0, 1), 0)),
    "hook": (COMPRESSED, {"communication_hook": None}, (GRADIENTS, (0, 1), 0)),
}


@pytest.mark.parametrize("engine", sweep(["torch", "ddp"], lambda engine: engine == "ddp"))
@pytest.mark.parametrize(("training", "otherwise", "expected"), OTHERWISE.values(), ids=OTHERWISE)
def test_each_point_of_the_semantics_shows_in_the_numbers(training, otherwise, expected, engine):
    world_size = len(training.iterations)
    assert run(training, world_size, engine).findings == ()
    reference = reference_by_oracle(replace(training, **otherwise), world_size)
    finding = run(training, world_size, engine, reference=reference).findings[0]
    code, ranks, iteration = expected
    assert (finding.code, finding.ranks) == (code, ranks)
    assert f"after iteration {iteration}" in finding.summary


def test_a_network_that_communicates_computes_on_all_batches_at_once():
    training = Training((NetworkChoice("sync_batch_norm"),), (2, 2), rows=(3, 5))
    assert run(training, 2).findings == ()
    apart = reference_by_oracle(replace(training, networks=(NORMALIZED,)), 2)
    assert run(training, 2, reference=apart).findings[0].code is Code.DIVERGENCE_GRADIENTS


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            Training((NetworkChoice("branches"),), exceptions=(ExceptionalIterations((0,), (0,), uses=("left",)),)),
            "batches leave out branches, expected find_unused_parameters",
        ),
        (Training(iterations=(1, 2)), r"^iterations are \[1, 2\] without a join, expected equal numbers"),
        (
            Training(iterations=IterationRule(2), exceptions=(ExceptionalIterations((1,), (1,), Action.SKIP_STEP),)),
            r"^ranks skip_step or train in iteration 1, expected one action for all",
        ),
    ],
)
def test_what_has_no_counterpart_in_plain_training(training, message):
    with pytest.raises(UsageError, match=message):
        oracle.train_plainly(training, 2)


def divisor(plain, present, *, by_all):
    """Another divisor than the training's."""
    met = oracle._average_gradients(
        [rank.gradients for rank in present], len(plain._ranks) if by_all else len(present), None
    )
    for rank in present:
        rank.gradients = dict(met)


def first_gives_buffers(plain, present, *, again):
    if plain._buffers_are_due:
        for rank in plain._ranks:
            rank.buffers = dict(present[0].buffers)
    plain._buffers_are_due = plain._shares_buffers and again
    for rank in present:
        rank.forwards += 1


def lowest_is_kept(plain):
    last = max(plain._ranks, key=lambda rank: (rank.forwards, -rank.number))
    for rank in plain._ranks:
        rank.buffers = last.buffers if plain._training.join and plain._shares_buffers else rank.buffers
        oracle._load_rank_state(plain._model, rank)
        rank.history.append(oracle.snapshot(plain._model))


def zeros_for_none(plain, present):
    MEET(plain, present)
    for rank in present:
        for name, parameter in plain._model.named_parameters():
            if rank.gradients[name] is None:
                rank.gradients[name] = torch.zeros_like(parameter)


AVERAGED, MEET = oracle._average_gradients, oracle._PlainTraining._reduce_gradients

FAULTS = {
    "divides by all": (
        oracle._PlainTraining,
        "_reduce_gradients",
        lambda plain, present: divisor(plain, present, by_all=True),
    ),
    "divides by those present": (
        oracle._PlainTraining,
        "_reduce_gradients",
        lambda plain, present: divisor(plain, present, by_all=False),
    ),
    "the lowest gives its buffers": (oracle._PlainTraining, "_share_buffers", first_gives_buffers),
    "the lowest is kept": (oracle._PlainTraining, "_end_training", lowest_is_kept),
    "loses a rank": (oracle, "_average_gradients", lambda own, *rest: AVERAGED(own[: max(1, len(own) - 1)], *rest)),
    "an unused parameter gets zeros": (oracle._PlainTraining, "_reduce_gradients", zeros_for_none),
    "averages no buffers": (oracle, "_average_buffers", lambda present: None),
}


AVERAGING = Training((NORMALIZED,), (3, 3), averages_buffers=True)


@pytest.fixture(scope="module")
def references():
    """What the oracle says of the join matrix, but for the large ones: they are slow, and have nothing more."""
    matrix = [(scenario.args[0], scenario.world_size) for scenario in registry.values() if MATRIX in scenario.tags]
    small = [each for each in matrix if each[0].networks[0].name not in ("conv", "resnet")]
    return [(*each, reference_by_oracle(*each)) for each in ((AVERAGING, 2), *small)]


@pytest.mark.parametrize(("owner", "name", "fault"), FAULTS.values(), ids=FAULTS)
def test_the_join_matrix_would_notice_a_mistake_in_the_semantics(owner, name, fault, references):
    def shows_in(training, world_size, reference):
        with patch.object(owner, name, fault):
            wrong = oracle.train_plainly(training, world_size)
        return bool(find_first_differences(reference, wrong))

    assert any(shows_in(*each) for each in references)
