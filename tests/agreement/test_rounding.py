"""The bound on how far two sums may lie apart: worked out by hand, kept by every order of addition, and not idle."""

from itertools import permutations

import torch

from ddpsim.scenarios.ranks.interpreter import input_tensors
from ddpsim.simulator.programs.check import MatchedCall
from ddpsim.simulator.programs.program import Issue
from tests.agreement.rounding import bounds, rounds
from tests.kit.rows import rows


def together(operation, shape, dtype="float32", reduction="SUM", size=3):
    shapes = (shape,) * size if operation == "reduce_scatter" else (shape,)
    root = 0 if operation == "reduce" else None
    issue = Issue("x", operation, shapes=shapes, dtype=dtype, reduction=reduction, root=root)
    return [MatchedCall(rank, issue) for rank in range(size)]


def added(column, order, reduction):
    total = column[order[0]].clone()
    for rank in order[1:]:
        total = total * column[rank] if reduction == "PRODUCT" else total + column[rank]
    return total / len(order) if reduction == "AVG" else total


@rows("reduction", ["SUM", "AVG", "PRODUCT"])
@rows("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_order_keeps_the_bound_and_some_differ(dtype, reduction):
    met = together("all_reduce", (200,), dtype, reduction, size=4)
    column = [input_tensors(call.issue, call.rank)[0] for call in met]
    results = [added(column, order, reduction).double() for order in permutations(range(4))]
    (bound,) = bounds(met, 0)
    apart = torch.stack([(one - other).abs() for one in results for other in results])
    assert bool((apart <= bound).all())
    assert float(apart.max()) > 0.05 * float(bound.max())


def test_by_hand():
    met = together("all_reduce", (5,), "float16")
    magnitudes = sum(input_tensors(call.issue, call.rank)[0].double().abs() for call in met)
    unit = 2**-11  # float16 has 10 bits behind the point: eps is 2**-10
    (bound,) = bounds(met, 1)
    assert torch.allclose(bound, 2 * (2 * unit) / (1 - 2 * unit) * magnitudes, rtol=1e-15, atol=0)


def test_each_rank_has_the_bound_of_its_own_part():
    whole = bounds(together("all_reduce", (6, 2)), 0)[0]
    for rank in range(3):
        part = bounds(together("reduce_scatter_tensor", (6, 2)), rank)
        assert [each.tolist() for each in part] == [whole[2 * rank : 2 * rank + 2].tolist()]
    columns = [bounds(together("reduce_scatter", (2,)), rank) for rank in range(3)]
    assert [len(each) for each in columns] == [1, 1, 1]
    assert len({tuple(each[0].tolist()) for each in columns}) == 3


@rows(
    ("operation", "dtype", "reduction", "expected"),
    [
        ("all_reduce", "float16", "SUM", True),
        ("reduce", "float32", "AVG", True),
        ("reduce_scatter", "bfloat16", "PRODUCT", True),
        ("all_reduce", "float32", "MAX", False),
        ("all_reduce", "int32", "SUM", False),
        ("all_reduce", "bool", "SUM", False),
    ],
)
def test_only_sums_of_fractions_round(operation, dtype, reduction, expected):
    assert rounds(together(operation, (2,), dtype, reduction)) is expected


def test_what_is_only_moved_does_not_round():
    assert not rounds([MatchedCall(0, Issue("x", "broadcast", shapes=((2,),), dtype="float32", root=0))])
