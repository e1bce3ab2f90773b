"""Which cause a divergence is put down to."""

import pytest
import torch

from scenarios.reference import divergence_from
from scenarios.snapshot import Snapshot
from simulator import Code, simulate
from simulator.calls import NOWHERE
from simulator.diagnosis.divergence import Circumstances, Moment, Side, divergence


def end(finding):
    *_, cause, remedy = finding.text.splitlines()
    assert cause.startswith("  cause   ")
    assert remedy.startswith("  try     ")
    return cause[10:], remedy[10:]


def unlike_plain_training(*values):
    """The finding for ranks that return a parameter with these values, where it should be 1."""
    snapshots = [Snapshot({"weight": torch.tensor([value])}, {}, {}) for value in values]
    result = simulate(lambda rank: snapshots[rank], len(values))
    return divergence_from(Snapshot({"weight": torch.tensor([1.0])}, {}, {}), result)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_came_from_some_rank(value):
    finding = unlike_plain_training(value, value, value)
    assert finding.ranks == (0, 1, 2)
    cause, remedy = end(finding)
    assert cause.startswith("a loss or gradient that is no number came up on some rank")
    assert "all_reduce(MAX) of isnan(loss)" in remedy


def test_all_ranks_compute_something_else_than_plain_training():
    assert end(unlike_plain_training(2.0, 2.0))[1].startswith("weigh each rank by its samples")


def test_one_rank_holds_something_else_than_plain_training():
    finding = unlike_plain_training(1.0, 2.0, 1.0)
    assert finding.ranks == (1,)
    assert end(finding)[0].startswith("what rank 1 received or computed is not what plain training gives")
    assert "the order of messages" in end(finding)[1]


def found(*, step=2, optimizer_step=1, sides=((0, 1, 3), (2,)), **known):
    """The finding for replicas that differ after an optimizer step."""
    return divergence(
        Code.DIVERGENCE_PARAMETERS,
        Moment(0, step, optimizer_step),
        "weight",
        [Side(ranks, str(place)) for place, ranks in enumerate(sides)],
        sites=dict.fromkeys(sorted(rank for ranks in sides for rank in ranks), NOWHERE),
        known=Circumstances(**known),
    )


@pytest.mark.parametrize(
    ("circumstances", "words"),
    [
        ({}, "did not start from the same state"),
        ({"step": 0}, "no synchronising forward went through the wrapper"),
        ({"step": 0, "has_run": True}, "no synchronising forward preceded this optimizer step"),
        ({"optimizer_step": 2}, "no synchronising forward preceded this optimizer step"),
        ({"is_reduced": False}, "weight is in no bucket"),
        ({"unreduced": "bucket 0 (a)", "is_late": True}, "bucket 0 (a) was not reduced"),
        ({"is_late": True, "unwaited": "all_reduce #3"}, "a backward ran when this step's reduction was over"),
        ({"unwaited": "all_reduce #3 (train.py:7)"}, "all_reduce #3 (train.py:7) had not been waited for"),
        ({"is_order": True}, "the model of rank 2 has its parameters in another order"),
        ({"is_order": True, "sides": ((0, 1), (2, 3))}, "the model of some ranks has its parameters in another order"),
    ],
)
def test_what_is_known_besides_the_values_decides(circumstances, words):
    assert words in end(found(**circumstances))[0]
