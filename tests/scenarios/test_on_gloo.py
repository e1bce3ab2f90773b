"""Every scenario with real gloo behind the matching: it comes to what it comes to on memory, and trains the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim import Verdict
from ddpsim.scenarios import registry, run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.training.reference import find_first_differences
from tests.tiers import sweep

pytestmark = pytest.mark.tier("ci")

JOIN_MATRIX = [
    pytest.param(scenario, engine, id=f"{scenario.name}-{engine.value}")
    for scenario in registry.values()
    if "join-matrix" in scenario.tags
    for engine in Engine
]

IN_CI = set(sorted(registry)[::6])
"""The way from a slot to gloo is the same for all; what gloo does with each operation, tests/semantics has."""


@pytest.mark.parametrize("name", sweep(registry, lambda name: name in IN_CI))
def test_it_comes_to_the_same(name: str) -> None:
    # Under engine "ddp", too: `ddpsim zoo --transport gloo --engine both` runs all on both.
    result = run_scenario(name, transport="gloo")
    assert registry[name].expected.is_met_by(result), str(result)


@pytest.mark.parametrize(("scenario", "engine"), sweep(JOIN_MATRIX, lambda case: case.values[1] is Engine.DDP))
def test_it_trains_the_same_parameters(scenario: Scenario, engine: Engine) -> None:
    memory, gloo = (run_scenario(scenario, engine, transport=transport) for transport in ("memory", "gloo"))
    assert gloo.trace.digest() == memory.trace.digest()
    assert gloo.verdict is Verdict.PASS
    assert scenario.reference is not None
    reference = replace(scenario.reference(scenario.world_size), histories=memory.returns)
    assert find_first_differences(reference, gloo.returns) == []
