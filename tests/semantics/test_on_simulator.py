"""The table on the simulator's process group, on both transports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

from ddpsim import Result, simulate
from ddpsim.simulator.transport import gloo
from tests.kit.results import returned
from tests.semantics.argument_errors import ERROR_CASES
from tests.semantics.case import Case, difference
from tests.semantics.cases import BEHAVIOURS, CASES, SWEEPS, WARNINGS, runs_always
from tests.semantics.error_case import ErrorCase
from tests.tiers import sweep

FIRST_OF_AN_OPERATION = list({case.id.partition("-")[0]: case for case in reversed(BEHAVIOURS)}.values())

_SOME = frozenset(case.id for case in (*SWEEPS[::9], *BEHAVIOURS[1::3], *FIRST_OF_AN_OPERATION))

pytestmark = [pytest.mark.filterwarnings(each) for each in WARNINGS]

AnyCase = TypeVar("AnyCase", Case, ErrorCase)


def by_operation(cases: Iterable[AnyCase], by_default: Callable[[AnyCase], bool]) -> list[object]:
    """The cases of each operation as one test's, and those that may wait for the night as another's."""
    groups: dict[tuple[str, bool], list[AnyCase]] = {}
    for case in cases:
        groups.setdefault((case.id.partition("-")[0], by_default(case)), []).append(case)
    tests = [pytest.param(group, id=name if runs else f"{name}, rest") for (name, runs), group in groups.items()]
    return sweep(tests, lambda test: by_default(test.values[0][0]))


def complaints(cases: Iterable[AnyCase], check: Callable[[AnyCase], None]) -> list[str]:
    """What is wrong with each of the cases, by its name."""
    found = []
    for case in cases:
        try:
            check(case)
        except Exception as error:
            found.append(f"{case.id}: {type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("cases", by_operation(CASES, runs_always))
def test_cases(cases: list[Case]) -> None:
    assert complaints(cases, _check) == []


def is_told_by_gloo(case: Case) -> bool:
    """Of what moves as in memory, a few; each operation, and all that gloo refuses."""
    return case.id in _SOME or case.gloo_refuses is not None


@pytest.mark.parametrize("cases", by_operation(BEHAVIOURS, lambda case: case in BEHAVIOURS[::4]))
def test_cases_in_random_order(cases: list[Case]) -> None:
    assert complaints(cases, lambda case: _check(case, policy="random", seed=7)) == []


@pytest.mark.parametrize("cases", by_operation(CASES, is_told_by_gloo))
def test_cases_on_gloo(cases: list[Case]) -> None:
    assert complaints(cases, _check_on_gloo) == []


@pytest.mark.parametrize(
    "cases",
    by_operation(
        BEHAVIOURS,
        lambda case: case in BEHAVIOURS[::4] or case in FIRST_OF_AN_OPERATION,
    ),
)
def test_cases_on_gloo_by_way_of_copies(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    # What is staged on a machine with a GPU, here by the same code from memory to memory.
    monkeypatch.setattr(gloo, "needs_host_copy", lambda tensor: True)
    assert complaints(cases, _check_on_gloo) == []


def _check(case: Case, **options: object) -> None:
    result = simulate(case.program, world_size=case.world_size, **options)  # type: ignore[arg-type]
    if case.gloo_refuses is not None:
        assert sorted(result.errors) == list(range(case.world_size))
        assert all(case.gloo_refuses in str(error) for error in result.errors.values())
    else:
        assert _differences(case, result) == [None] * case.world_size


def _check_on_gloo(case: Case) -> None:
    _check(case, transport="gloo")


@pytest.mark.parametrize("cases", by_operation(ERROR_CASES, lambda case: True))
def test_argument_errors(cases: list[ErrorCase]) -> None:
    assert complaints(cases, _check_error) == []


# An error comes before data would move.
@pytest.mark.parametrize("cases", by_operation(ERROR_CASES, lambda case: case in ERROR_CASES[::6]))
def test_argument_errors_on_gloo(cases: list[ErrorCase]) -> None:
    assert complaints(cases, lambda case: _check_error(case, transport="gloo")) == []


def _check_error(case: ErrorCase, **options: object) -> None:
    assert [
        case.complaint(rank, raised)
        for rank, raised in enumerate(returned(case.program, world_size=case.world_size, **options))
    ] == [None] * case.world_size


def _differences(case: Case, result: Result) -> list[str | None]:
    result.raise_for_verdict()
    return [
        difference(value, case.expected(rank), tolerance=case.tolerance) for rank, value in enumerate(result.returns)
    ]
