"""Trainings that are drawn agree on the loss that decides whether they step; who takes its own is found by that."""

import pytest
import torch

from ddpsim import Verdict
from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.value_scenarios import scenario_of_training
from ddpsim.scenarios.training import trainer
from ddpsim.scenarios.training.training import Action, ExceptionalIterations, Training
from tests.kit.results import codes

SCENARIO = scenario_of_training(
    Training(iterations=(3, 3), reduces_loss=True, exceptions=(ExceptionalIterations(None, (1,), Action.SKIP_STEP),)),
    2,
    name="agreed",
)


def of_this_rank(loss):
    """The calls are the same, and so is all that is trained, as no loss is infinite."""
    torch.distributed.all_reduce(loss.detach().reshape(1).clone())
    return loss.detach()


@pytest.mark.parametrize("engine", Engine)
def test_a_decision_by_the_loss_of_one_rank_is_found_by_nothing_else(monkeypatch, engine):
    assert run_scenario(SCENARIO, engine=engine).verdict is Verdict.PASS
    monkeypatch.setattr(trainer, "_sum_over_ranks", of_this_rank)
    result = run_scenario(SCENARIO, engine=engine)
    assert codes(result) == [("mismatch.value", (0, 1))]
    monkeypatch.setattr(trainer, "agree", lambda name, value: value)
    assert run_scenario(SCENARIO, engine=engine).verdict is Verdict.PASS
