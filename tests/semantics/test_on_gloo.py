"""The table on real gloo: the cases are right, and where gloo cannot do one it is shown that it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.semantics.argument_errors import ERROR_CASES
from tests.semantics.case import Case, difference
from tests.semantics.cases import CASES, WARNINGS, runs_always
from tests.semantics.error_case import ErrorCase
from tests.semantics.real_gloo import GlooWorld, Outcome, state_per_thread
from tests.tiers import sweep

# It is the cases that are tested here, and not the simulator.
pytestmark = [pytest.mark.tier("ci"), *(pytest.mark.filterwarnings(each) for each in WARNINGS)]


@pytest.fixture(scope="module")
def world_of() -> Iterator[Callable[[int], GlooWorld]]:
    """A world of the wanted size; kept for the whole module, made anew after one that broke."""
    worlds: dict[int, GlooWorld] = {}

    def get(world_size: int) -> GlooWorld:
        world = worlds.get(world_size)
        if world is not None and world.is_broken:
            worlds.pop(world_size).close()
            world = None
        if world is None:
            world = worlds[world_size] = GlooWorld(world_size)
        return world

    with state_per_thread():
        yield get
        for world in worlds.values():
            world.close()


@pytest.mark.parametrize("case", sweep(CASES, runs_always), ids=lambda case: case.id)
def test_case(case: Case, world_of: Callable[[int], GlooWorld]) -> None:
    outcomes = world_of(case.world_size).run(case.program)
    _skip_what_is_missing(outcomes)
    if case.gloo_refuses is not None:
        assert [outcome.error is None for outcome in outcomes] == [False] * case.world_size
        assert all(case.gloo_refuses in str(outcome.error) for outcome in outcomes)
        return
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    differences = [
        difference(outcome.value, case.expected(rank), tolerance=case.tolerance)
        for rank, outcome in enumerate(outcomes)
    ]
    assert differences == [None] * case.world_size


@pytest.mark.parametrize("case", sweep(ERROR_CASES, lambda case: case in ERROR_CASES[::4]), ids=lambda case: case.id)
def test_argument_error(case: ErrorCase, world_of: Callable[[int], GlooWorld]) -> None:
    world = world_of(case.world_size)
    outcomes = world.run(case.program)
    world.is_broken = world.is_broken or case.loses_connections
    _skip_what_is_missing(outcomes)
    assert [case.complaint(rank, outcome.value) for rank, outcome in enumerate(outcomes)] == [None] * case.world_size


def _skip_what_is_missing(outcomes: list[Outcome]) -> None:
    missing = "Backend gloo does not support alltoall"
    if any(missing in str(outcome) for outcome in outcomes):
        pytest.skip("the gloo of this torch (2.11) cannot all_to_all lists of tensors")
