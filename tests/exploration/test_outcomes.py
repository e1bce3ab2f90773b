"""Outcomes: equal texts for equal ends, short, and the same on every machine."""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum

import numpy
import torch

from ddpsim.simulator.choices import Schedule
from ddpsim.simulator.exploration.explorer import count_outcomes, outcome_of_result, value_text
from ddpsim.simulator.result import Result
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.verdict import Code, Finding
from tests.kit.rows import rows


def result(*codes, returns=(None, None)):
    findings = tuple(Finding(code, ranks, "") for code, ranks in codes)
    return Result(2, findings, returns, {}, Schedule(), Trace())


def outcomes(*results):
    return count_outcomes(Counter(outcome_of_result(each) for each in results))


def test_returns_are_told_where_they_differ():
    assert outcomes(result(returns=(1, 2)), result(returns=(1, 2))) == {"pass": 2}
    assert outcomes(result(returns=(1, 2)), result(returns=(2, 1)), result(returns=(1, 2))) == {
        "pass  returned (1, 2)": 2,
        "pass  returned (2, 1)": 1,
    }


def test_what_a_failed_run_returned_does_not_count():
    dead = (Code.DEADLOCK_CYCLE, (1, 0))
    assert outcomes(result(dead, returns=(1, None)), result(dead)) == {"fail  deadlock.cycle ranks 0, 1": 2}


def test_findings_are_told_in_one_order():
    first, second = (Code.RANK_ERROR, (1,)), (Code.DEADLOCK_DEAD_RANK, (1,))
    text = "fail  deadlock.dead_rank rank 1  rank_error rank 1"
    assert outcomes(result(first, second), result(second, first)) == {text: 2}


def test_a_mismatch_hides_what_had_happened_by_chance():
    clash, error = (Code.MISMATCH_SHAPE, (1,)), (Code.RANK_ERROR, (0,))
    assert outcomes(result(error, clash), result(clash)) == {"fail  mismatch.shape rank 1": 2}


def test_hazards_count_where_the_run_came_to_its_end():
    hazard = (Code.HAZARD_CALL_SITE, (0, 1))
    assert outcomes(result(hazard), result()) == {"pass  hazard.call_site ranks 0, 1": 1, "pass": 1}
    assert outcomes(result(hazard, (Code.RANK_ERROR, (0,)))) == {"fail  rank_error rank 0": 1}


def test_a_budget_is_unknown():
    assert outcomes(result((Code.BUDGET, (0,)))) == {"unknown  budget rank 0": 1}


# --- values -----------------------------------------------------------------------------------------------------------


class Color(Enum):
    RED = 3


@dataclass
class Point:
    x: float
    y: object


class Unknown:
    pass


class Broken:
    def tolist(self):
        raise RuntimeError("no numbers")


@rows(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (3, "3"),
        (0.1 + 0.2, "0.3"),
        (float("nan"), "nan"),
        ("a", "'a'"),
        (b"a", "b'a'"),
        ([1, (2.0,)], "[1, (2,)]"),
        ({"a": 1, "b": [2]}, "{'a': 1, 'b': [2]}"),
        (OrderedDict(a=1), "{'a': 1}"),
        ({"b", "a", "c"}, "{'a', 'b', 'c'}"),
        (Color.RED, "Color.RED"),
        (Point(1.5, [None]), "Point(x=1.5, y=[None])"),
        (ValueError("no"), "ValueError(no)"),
        (torch.tensor([[1.0, 2.5]]), "[[1, 2.5]]"),
        (torch.tensor(7), "7"),
        (torch.ones(2, dtype=torch.bfloat16), "[1, 1]"),
        (numpy.array([1, 2]), "[1, 2]"),
        (numpy.float64(0.5), "0.5"),
        (torch.nn.Linear(1, 1, bias=False, device="meta"), "Linear({'weight': Tensor})"),
        (Unknown(), "Unknown"),
        (Unknown, "type"),
        (Broken(), "Broken"),
    ],
)
def test_texts(value, text):
    assert value_text(value) == text


def test_a_long_text_is_cut_and_told_apart():
    one, other = list(range(100)), [*range(99), 0]
    assert value_text(one) == value_text(list(one))
    assert value_text(one) != value_text(other)
    assert len(value_text(one)) <= 80
    assert value_text(one).startswith("[0, 1, 2, 3, ")


def test_a_large_tensor_is_told_by_its_first_numbers_and_its_sum():
    tensor = torch.ones(100, 100)
    assert value_text(tensor) == "[1, 1, 1, 1, 1, 1, 1, 1, ...] of [100, 100] with sum 10000"


def test_what_contains_itself_has_an_end():
    knot = []
    knot.append(knot)
    assert value_text(knot) == "[" * 21 + "..." + "]" * 21
