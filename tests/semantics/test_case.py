"""The comparison finds every kind of difference, and the tables name each case once."""

from __future__ import annotations

import re

import pytest
import torch

from tests.semantics.argument_errors import ERROR_CASES
from tests.semantics.case import difference
from tests.semantics.cases import CASES


@pytest.mark.parametrize(
    ("actual", "expected", "found"),
    [
        (1, 2, "1 instead of 2"),
        (1, True, "1 is not a bool"),
        (None, torch.zeros(1), "None is not a Tensor"),
        (torch.nn.Parameter(torch.zeros(1)), torch.zeros(1), "is not a Tensor"),
        ([1], [1, 2], "another form"),
        ((1,), [1], "another form"),
        ({"a": 1}, {"b": 1}, "another form"),
        ({"a": [0]}, {"a": [1]}, r"'a'.*0 instead of 1"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "'dtype' do not match"),
        (torch.zeros(2), torch.zeros(1, 2), "'shape' do not match"),
        (torch.eye(2), torch.eye(2).to_sparse(), "strided instead of torch.sparse_coo"),
        (torch.tensor([1.0]), torch.tensor([1.0001]), "not equal"),
    ],
)
def test_difference(actual: object, expected: object, found: str) -> None:
    assert difference(expected, expected) is None
    assert re.search(found, difference(actual, expected) or "")


def test_difference_within_tolerance() -> None:
    assert difference(torch.tensor([1.0]), torch.tensor([1.0001]), tolerance=1e-3) is None


@pytest.mark.parametrize("table", [CASES, ERROR_CASES], ids=["cases", "argument-errors"])
def test_names_are_unique(table: tuple) -> None:
    names = [case.id for case in table]
    assert sorted(set(names)) == sorted(names)
