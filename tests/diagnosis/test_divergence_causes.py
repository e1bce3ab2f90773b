"""Which cause a divergence is put down to."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Code, simulate
from ddpsim.scenarios.training.reference import find_divergence
from ddpsim.scenarios.training.snapshot import Snapshot
from ddpsim.simulator.calls import NOWHERE
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.replica_divergence import (
    ComparisonPoint,
    DivergenceCircumstances,
    EqualRanks,
    ReferenceDeviation,
    advise_deviation,
    divergence_finding,
)
from ddpsim.simulator.joins import JoinedRank, JoinSummary
from ddpsim.simulator.replicas.replica_tensors import fingerprint
from tests.kit.rows import rows

from .ending import end


def unlike_plain_training(*values):
    """The finding for ranks that return a parameter with these values, where it should be 1."""
    snapshots = [Snapshot({"weight": torch.tensor([value])}, {}, {}) for value in values]
    result = simulate(lambda rank: snapshots[rank], len(values))
    return find_divergence(Snapshot({"weight": torch.tensor([1.0])}, {}, {}), result)


def test_a_tensor_that_differs_on_every_rank_names_them_together():
    sides = [EqualRanks((rank,), f"{rank}.5") for rank in range(4)]
    sites = dict.fromkeys(range(4), NOWHERE)
    finding = divergence_finding(
        Code.DIVERGENCE_PARAMETERS,
        ComparisonPoint(0, 1, 1),
        "weight",
        sides,
        sites=sites,
        index="[0, 0]",
        known=DivergenceCircumstances(),
    )
    assert (
        finding.summary
        == "weight[0, 0] differs on all of ranks 0-3 after the optimizer step that followed step 1 of DDP #0"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_came_from_some_rank(value):
    finding = unlike_plain_training(value, value, value)
    assert finding.ranks == (0, 1, 2)
    cause, remedy = end(finding)
    assert cause.startswith("a loss or gradient was NaN or infinite on some rank")
    assert "all_reduce(MAX) of isnan(loss)" in remedy


def test_all_ranks_compute_something_else_than_plain_training():
    cause, remedy = end(unlike_plain_training(2.0, 2.0))
    assert cause.startswith("the ranks together do not train on what one process would")
    assert "shuffle with the same seed" in remedy
    assert "weigh each rank's loss by its number of samples" in remedy


@rows(
    ("values", "factor"),
    [
        (([0.25, -0.5, 0.0], [0.75]), "0.25 times"),
        (([2.0, -4.0, 0.0], [6.0]), "2 (the world size) times"),
        (([0.5, -1.0, 0.0], [1.5]), "0.5 (1 / world size) times"),
        (([3.0, -6.0, 0.0], [3.0]), "3 times"),  # the other one agrees
        (([3.0, -6.0, 0.0], [6.0]), None),
        (([3.0, -6.0, 0.1], [9.0]), None),
        (([1.0, -2.0, 0.0], [6.0]), None),  # of one element any number is a multiple
    ],
)
def test_one_factor_in_all_that_differs(values, factor):
    def holding(first, second):
        return Snapshot({}, {}, {"first": torch.tensor(first), "second": torch.tensor(second)})

    found = find_divergence(holding([1.0, -2.0, 0.0], [3.0]), simulate(lambda rank: holding(*values), 2))
    assert found.code is Code.DIVERGENCE_GRADIENTS
    assert end(found)[0].startswith(
        f"every element that differs is {factor}" if factor else "the ranks together do not train on"
    )


@rows(
    ("code", "shadowed", "words"),
    [
        (Code.DIVERGENCE_PARAMETERS, ("bucket",), "the average is over other ranks"),
        (Code.DIVERGENCE_GRADIENTS, ("bucket", "used map"), "an old map of used parameters"),
        (Code.DIVERGENCE_PARAMETERS, ("bucket", "user"), "the calls of a sharded optimizer"),
        (Code.DIVERGENCE_BUFFERS, ("bucket", "buffers"), "still calls the buffer hook there"),
        (Code.DIVERGENCE_BUFFERS, ("bucket",), "what the ranks combine is not what one process counts"),
        (Code.DIVERGENCE_PARAMETERS, (), "the ranks together do not train on"),
    ],
)
def test_what_a_join_does_not_cover(code, shadowed, words):
    joined = JoinedRank(1, 2, tuple((phase, 2) for phase in shadowed))
    joining = JoinSummary("default", (joined, JoinedRank(0, 4)), 0)
    cause, _ = advise_deviation(ReferenceDeviation(code, (0, 1), 2), [joining])
    assert words in cause.text
    assert ("rank 1 ran out of input" in cause.text) is ("the ranks" not in words and "what the" not in words)


def test_one_rank_holds_something_else_than_plain_training():
    finding = unlike_plain_training(1.0, 2.0, 1.0)
    assert finding.ranks == (1,)
    assert end(finding)[0].startswith("what rank 1 received or computed differs from plain training")
    assert "the order of messages" in end(finding)[1]


def found(*, step=2, optimizer_step=1, sides=((0, 1, 3), (2,)), **known):
    """The finding for replicas that differ after an optimizer step."""
    return divergence_finding(
        Code.DIVERGENCE_PARAMETERS,
        ComparisonPoint(0, step, optimizer_step),
        "weight",
        [EqualRanks(ranks, str(index)) for index, ranks in enumerate(sides)],
        sites=dict.fromkeys(sorted(rank for ranks in sides for rank in ranks), NOWHERE),
        known=DivergenceCircumstances(**known),
    )


@rows(
    ("circumstances", "words"),
    [
        (
            {"step": 1, "apart": Cause.STARTED_APART},
            "the parameters already differed before the first step: the model was wrapped with init_sync=False, or "
            "parameters were loaded, initialised or changed after wrapping, differently on some ranks",
        ),
        ({"apart": Cause.STARTED_APART}, "after the step before, they were loaded"),
        ({"apart": Cause.GRADIENTS_CHANGED}, "the parameters were equal before this step, but the gradients"),
        ({"apart": Cause.OPTIMIZER_DIFFERS}, "parameters and gradients were equal before this step"),
        ({"step": 0}, "no synchronising forward went through the wrapper"),
        ({"step": 0, "has_run": True}, "no synchronising forward preceded this optimizer step"),
        ({"optimizer_step": 2}, "no synchronising forward preceded this optimizer step"),
        ({"is_reduced": False}, "weight is in no bucket"),
        ({"unreduced": "bucket 0 (a) was not reduced", "is_late": True}, "bucket 0 (a) was not reduced"),
        ({"is_late": True, "unwaited": "all_reduce #3"}, "a second backward, over this or another graph, ran after"),
        ({"unwaited": "all_reduce #3 (train.py:7)"}, "all_reduce #3 (train.py:7) had not been waited for"),
        ({"is_order": True}, "the model of rank 2 has its parameters in another order"),
        ({"is_order": True, "sides": ((0, 1), (2, 3))}, "the model of some ranks has its parameters in another order"),
    ],
)
def test_what_is_known_besides_the_values_decides(circumstances, words):
    assert words in end(found(**circumstances))[0]


@pytest.mark.parametrize("by_hand", [True, False])
def test_what_is_reduced_by_hand(by_hand):
    deviation = ReferenceDeviation(Code.DIVERGENCE_GRADIENTS, (0, 1), 2, is_by_hand=by_hand)
    words = "what the ranks reduce by hand is not" if by_hand else "the ranks together do not train on"
    assert words in advise_deviation(deviation, [])[0].text


def test_a_fingerprint_tells_order_and_sign_apart():
    values = [[1.0, 2.0], [2.0, 1.0], [-1.0, -2.0], [1.0, 2.0 + 1e-6], [float("nan"), 2.0], None]
    prints = [fingerprint([None if own is None else torch.tensor(own)]) for own in values]
    assert len(set(prints)) == len(values)
    again = [fingerprint([None if own is None else torch.tensor(own)]) for own in values]
    assert again == prints


class Boxed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

    def forward(self, batch):
        return [SimpleNamespace(x=self.one(batch) + self.other(batch))]


def unreduced(rank, what="", *, repaired=False):
    model = DistributedDataParallel(Boxed(), static_graph=what == "boxed" and not repaired)
    if what == "moved" and not repaired:
        model.to(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.full((1, 2), 1.0 + rank, dtype=next(model.parameters()).dtype)
    (box,) = model(inputs)
    if what == "grad" and not repaired:
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(box.x, parameters), strict=True):
            parameter.grad = gradient
    elif what == "unused" and not repaired:
        model.module.one(inputs).backward()
    else:
        box.x.backward()
    optimizer.step()


@rows(
    ("what", "words"),
    [
        ("grad", "no backward() reached the wrapper's parameters in this step"),
        ("unused", "other.bias) was not reduced in this step: other.weight, other.bias got no gradient"),
        ("moved", "although its parameters got gradients: DDP did not see all of them"),
        ("boxed", "although its parameters got gradients: DDP did not see all of them"),
    ],
)
def test_why_nothing_was_reduced(what, words):
    (finding,) = simulate(partial(unreduced, what=what), 2, check="replicas").findings
    assert words in end(finding)[0]
    assert not simulate(partial(unreduced, what=what, repaired=True), 2, check="replicas").findings
