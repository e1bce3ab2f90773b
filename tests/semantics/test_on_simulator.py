"""The table on the simulator's process group, on both transports."""

from __future__ import annotations

from itertools import product

import pytest

from ddpsim import Result, simulate
from ddpsim.simulator.transport import staging
from tests.semantics.argument_errors import ERROR_CASES
from tests.semantics.case import Case, difference
from tests.semantics.cases import BEHAVIOURS, CASES, SWEEPS, WARNINGS, runs_always
from tests.semantics.error_case import ErrorCase
from tests.tiers import sweep

FIRST_OF_AN_OPERATION = list({case.id.partition("-")[0]: case for case in reversed(BEHAVIOURS)}.values())

_SOME = frozenset(case.id for case in (*SWEEPS[::9], *BEHAVIOURS[1::3], *FIRST_OF_AN_OPERATION))

pytestmark = [pytest.mark.filterwarnings(each) for each in WARNINGS]


@pytest.mark.parametrize("case", sweep(CASES, runs_always), ids=lambda case: case.id)
def test_case(case: Case) -> None:
    result = simulate(case.program, world_size=case.world_size)
    assert _differences(case, result) == [None] * case.world_size


def is_told_by_gloo(case: Case) -> bool:
    """Of what moves as in memory, a few; each operation, and all in which gloo is not as the simulator's own."""
    return case.id in _SOME or bool(case.gloo_refuses or case.gloo_departs)


@pytest.mark.parametrize("case", sweep(BEHAVIOURS, lambda case: case in BEHAVIOURS[::4]), ids=lambda case: case.id)
def test_case_in_random_order(case: Case) -> None:
    result = simulate(case.program, world_size=case.world_size, policy="random", seed=7)
    assert _differences(case, result) == [None] * case.world_size


@pytest.mark.parametrize("case", sweep(CASES, is_told_by_gloo), ids=lambda case: case.id)
def test_case_on_gloo(case: Case) -> None:
    _check_on_gloo(case)


@pytest.mark.parametrize(
    "case",
    sweep(
        [case for case in BEHAVIOURS if case.gloo_departs is None],
        lambda case: case in BEHAVIOURS[::4] or case in FIRST_OF_AN_OPERATION,
    ),
    ids=lambda case: case.id,
)
def test_case_on_gloo_by_way_of_copies(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is staged on a machine with a GPU, here by the same code from memory to memory. Where gloo departs, it is for
    # how a tensor lies in memory, and a copy lies otherwise.
    monkeypatch.setattr(staging, "needs_staging", lambda tensor: True)
    _check_on_gloo(case)


def _check_on_gloo(case: Case) -> None:
    result = simulate(case.program, world_size=case.world_size, transport="gloo")
    if case.gloo_refuses is not None:
        assert sorted(result.errors) == list(range(case.world_size))
        assert all(case.gloo_refuses in str(error) for error in result.errors.values())
    elif case.gloo_departs is not None:
        assert any(_differences(case, result))
    else:
        assert _differences(case, result) == [None] * case.world_size


@pytest.mark.parametrize(
    ("case", "transport"),
    sweep(
        product(ERROR_CASES, ["memory", "gloo"]),
        lambda case: case[1] == "memory" or case[0] in ERROR_CASES[::6],  # an error comes before data would move
    ),
    ids=lambda each: each if isinstance(each, str) else each.id,
)
def test_argument_error(case: ErrorCase, transport: str) -> None:
    result = simulate(case.program, world_size=case.world_size, transport=transport)
    result.raise_for_verdict()
    assert [case.complaint(rank, raised) for rank, raised in enumerate(result.returns)] == [None] * case.world_size


def _differences(case: Case, result: Result) -> list[str | None]:
    result.raise_for_verdict()
    return [
        difference(value, case.expected(rank), tolerance=case.tolerance) for rank, value in enumerate(result.returns)
    ]
