"""The comparison finds every kind of difference, and the tables name each case once."""

from __future__ import annotations

import re

import pytest
import torch

from tests.semantics.argument_errors import ERROR_CASES
from tests.semantics.case import difference
from tests.semantics.cases import CASES


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "text",
        [1, "two", None],
        {"key": (1, 2)},
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.eye(2).to_sparse(),
    ],
    ids=repr,
)
def test_no_difference_from_itself(value: object) -> None:
    assert difference(value, value) is None


@pytest.mark.parametrize(
    ("actual", "expected", "found"),
    [
        (1, 2, r"value: 1 instead of 2"),
        (1, True, r"value: 1 is not a bool"),
        (None, torch.zeros(1), r"value: a NoneType instead of a Tensor"),
        (torch.nn.Parameter(torch.zeros(1)), torch.zeros(1), r"value: a Parameter instead of a Tensor"),
        ([1, 2], [1, 3], r"value\[1\]: 2 instead of 3"),
        ([1], [1, 2], r"value: 1 items instead of 2"),
        ((1,), [1], r"value: \(1,\) is not a list"),
        ({"a": 1}, {"b": 1}, r"value: keys \['a'\] instead of \['b'\]"),
        ({"a": [0]}, {"a": [1]}, r"value\['a'\]\[0\]: 0 instead of 1"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), r"value: dtype torch.float32 instead of torch.float64"),
        (torch.zeros(2), torch.zeros(1, 2), r"value: shape torch.Size\(\[2\]\) instead of"),
        (torch.eye(2), torch.eye(2).to_sparse(), r"value: layout torch.strided instead of torch.sparse_coo"),
        (torch.zeros(9), torch.ones(9), r"value: \[0.0, .*\.\.\. instead of \[1.0"),
        (torch.tensor([1.0]), torch.tensor([1.0001]), r"value: \[1.0\] instead of \[1.0001"),
    ],
)
def test_difference(actual: object, expected: object, found: str) -> None:
    text = difference(actual, expected)
    assert text is not None
    assert re.match(found, text)


def test_difference_within_tolerance() -> None:
    assert difference(torch.tensor([1.0]), torch.tensor([1.0001]), tolerance=1e-3) is None


@pytest.mark.parametrize("table", [CASES, ERROR_CASES], ids=["cases", "argument-errors"])
def test_names_are_unique(table: tuple) -> None:
    names = [case.id for case in table]
    assert sorted(set(names)) == sorted(names)
