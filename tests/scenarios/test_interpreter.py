"""The interpreter inside the simulator: what its calls leave behind, worked out with plain torch; and that `simulate`
finds in a program exactly what the check does."""

import pickle
from functools import reduce

import pytest
import torch

from ddpsim import Code, Verdict
from ddpsim.scenarios.fuzzing.strategies.generator import COLLECTIVES
from ddpsim.scenarios.ranks.interpreter import TensorValues, input_tensors, run_rank_steps
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.programs.program import CrashStep, Group, Issue, Program, Return, Wait
from tests.agreement.comparison import simulated

FLOAT = {"dtype": "float32"}
SUM = {"dtype": "float32", "reduction": "SUM"}


def together(issue):
    """What each rank's outputs hold after a call that all three make."""
    result = simulated(Program(3, (), ((issue, Wait("x")),) * 3))
    assert result.verdict is Verdict.PASS
    return [[tensor(output) for output in outputs["x"]] for outputs in result.returns]


def tensor(output):
    return torch.frombuffer(bytearray(output.content), dtype=getattr(torch, output.dtype)).reshape(output.shape)


def same(found, expected):
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def sums(inputs):
    return [reduce(torch.add, column) for column in zip(*inputs, strict=True)]


def parts():
    """What the root of a scatter sends: three tensors."""
    return input_tensors(Issue("x", "all_to_all", shapes=((2,),) * 3, **FLOAT), 0)


SPLITS = {"splits": ((2, 2, 2), (2, 2, 2))}
COLLECTIVE = {
    "all_reduce": (((2, 3),), SUM, lambda own: [sums(own)] * 3),
    "all_reduce_coalesced": (((2, 3), ()), SUM, lambda own: [sums(own)] * 3),
    "broadcast": (((2, 3),), {"root": 1, **FLOAT}, lambda own: [own[1]] * 3),
    "reduce": (((5,),), {"root": 2, **SUM}, lambda own: [[], [], sums(own)]),
    "all_gather": (((2,),), FLOAT, lambda own: [[each[0] for each in own]] * 3),
    "all_gather_coalesced": (((2,), (3,)), FLOAT, lambda own: [[each for many in own for each in many]] * 3),
    "all_gather_into_tensor": (((2, 3),), FLOAT, lambda own: [[torch.cat([each[0] for each in own])]] * 3),
    "gather": (((2,),), {"root": 0, **FLOAT}, lambda own: [[each[0] for each in own], [], []]),
    "scatter": (((2,),), {"root": 0, **FLOAT}, lambda own: [[part] for part in parts()]),
    "reduce_scatter": (((2,), (3,), (1,)), SUM, lambda own: [[each] for each in sums(own)]),
    "reduce_scatter_tensor": (((6, 2),), SUM, lambda own: [[each] for each in sums(own)[0].chunk(3)]),
    "all_to_all": (((2,),) * 3, FLOAT, lambda own: [[each[rank] for each in own] for rank in range(3)]),
    "all_to_all_single": (
        ((6, 2), (6, 2)),
        {**SPLITS, **FLOAT},
        lambda own: [[torch.cat([each[0].chunk(3)[rank] for each in own])] for rank in range(3)],
    ),
    "barrier": ((), {}, lambda own: [[], [], []]),
}
"""By operation, the shapes and options of a call, and what it leaves on each rank, given what each sends."""


@pytest.mark.usefixtures("rank_order")
@pytest.mark.parametrize("operation", COLLECTIVE)
def test_outputs(operation):
    shapes, options, expected = COLLECTIVE[operation]
    issue = Issue("x", operation, shapes=shapes, **options)
    assert all(map(same, together(issue), expected([input_tensors(issue, rank) for rank in range(3)])))


def test_every_collective_is_covered():
    assert list(COLLECTIVE) == list(COLLECTIVES)


@pytest.mark.parametrize("source", [2, ANY_SOURCE])
def test_a_message_in_a_group(source):
    send = Issue("m", "send", "g", ((3,),), "int64", peer=1, tag=5)
    receive = Issue("m", "recv", "g", ((3,),), "int64", peer=source, tag=5)
    steps = ((), (receive, Wait("m")), (send, Wait("m")))
    result = simulated(Program(3, (Group("g", (1, 2)),), steps))
    assert result.verdict is Verdict.PASS
    assert [tensor(each).tolist() for each in result.returns[1]["m"]] == [input_tensors(send, 2)[0].tolist()]
    assert result.returns[2] == {"m": []}


def test_only_what_was_waited_for_is_returned_and_a_return_ends_it_and_a_crash_raises():
    result = simulated(Program(2, (), ((), (CrashStep(),))))
    assert [finding.code for finding in result.findings] == [Code.RANK_ERROR]
    assert str(result.errors[1]) == "a crash that is a step of the program"
    issue = Issue("x", "barrier")
    result = simulated(Program(2, (), ((issue, Return(), Wait("x")), (issue, Wait("x")))))
    assert result.returns == ({}, {"x": []})


def test_outputs_are_plain_values_once_pickled():
    result = simulated(
        Program(1, (), ((Issue("x", "all_reduce", shapes=((),), dtype="bool", reduction="MAX"), Wait("x")),))
    )
    outputs = result.returns[0]
    assert len(outputs.works) == 1
    copy = pickle.loads(pickle.dumps(outputs))
    assert copy == {"x": [TensorValues("bool", (), outputs["x"][0].content)]}
    assert type(copy) is dict


def test_numbers_differ_between_ranks_and_names_and_are_small():
    values = [
        input_tensors(Issue(name, "all_reduce", shapes=((50,),), **SUM), rank)[0] for name in "ab" for rank in (0, 1)
    ]
    assert len({tuple(each.tolist()) for each in values}) == 4
    assert all(1 <= abs(value) < 2 for each in values for value in each.tolist())
    assert sum(value < 0 for each in values for value in each.tolist()) > 50
    whole = input_tensors(Issue("a", "all_reduce", shapes=((50,),), dtype="int8", reduction="SUM"), 0)[0]
    assert set(whole.tolist()) == set(range(-3, 4))


def test_run_steps_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(run_rank_steps)) is run_rank_steps
