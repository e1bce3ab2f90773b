"""The table on the simulator's process group."""

from __future__ import annotations

import pytest

from simulator import simulate
from tests.semantics.argument_errors import ERROR_CASES
from tests.semantics.case import Case, difference
from tests.semantics.cases import BEHAVIOURS, CASES, WARNINGS
from tests.semantics.error_case import ErrorCase

pytestmark = [pytest.mark.filterwarnings(each) for each in WARNINGS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    _check(case, policy="round_robin")


@pytest.mark.parametrize("case", BEHAVIOURS, ids=lambda case: case.id)
def test_case_in_random_order(case: Case) -> None:
    _check(case, policy="random")


@pytest.mark.parametrize("case", ERROR_CASES, ids=lambda case: case.id)
def test_argument_error(case: ErrorCase) -> None:
    result = simulate(case.program, world_size=case.world_size)
    result.raise_for_verdict()
    assert [case.complaint(rank, raised) for rank, raised in enumerate(result.returns)] == [None] * case.world_size


def _check(case: Case, *, policy: str) -> None:
    result = simulate(case.program, world_size=case.world_size, policy=policy, seed=7)
    result.raise_for_verdict()
    differences = [
        difference(value, case.expected(rank), tolerance=case.tolerance) for rank, value in enumerate(result.returns)
    ]
    assert differences == [None] * case.world_size
