"""Which cause a divergence is put down to."""

import pytest
import torch

from scenarios.reference import divergence_from
from scenarios.snapshot import Snapshot
from simulator import simulate


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
