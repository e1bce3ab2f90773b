"""A scenario by its name: which of its worlds are drawn, and whether there is anything to search for."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import relpath
from pathlib import Path

from scenarios.declared import program_in, training_in
from scenarios.engines import Engine
from scenarios.loader import load
from scenarios.model import Scenario
from scenarios.runner import run_scenario
from simulator import Pct, Policy, Result, UsageError, Verdict
from simulator.policies.random_walk import RandomWalk
from simulator.policies.round_robin import RoundRobin

_MORE_RANKS = 2
"""So many more than a scenario has are drawn, if it takes them."""
_SEEDS = range(5)


@dataclass(frozen=True, slots=True)
class AlwaysFails:
    """A scenario that fails under each schedule that was tried."""

    result: Result
    """Under the first of them."""
    schedules: int
    is_expected: bool
    """It is to fail in just these ways."""

    def __str__(self) -> str:
        expected = ", as expected" if self.is_expected else ""
        return f"fails under every schedule tried ({self.schedules}){expected}: no search is needed"


def first_look(scenario: Scenario, engine: Engine) -> AlwaysFails | None:
    """Run it under round robin, and if it fails, under a few other schedules; None if it passes under one of them."""
    results = []
    for policy in _policies():
        result = run_scenario(scenario, engine, policy=policy)
        if result.verdict is not Verdict.FAIL:
            return None
        results.append(result)
    is_expected = all(scenario.expected_by(engine).is_met_by(result) for result in results)
    return AlwaysFails(results[0], len(results), is_expected)


def _policies() -> list[Policy]:
    return [RoundRobin(), *map(RandomWalk, _SEEDS), *map(Pct, _SEEDS)]


def world_sizes(scenario: Scenario, world_size: int | None) -> tuple[int, int]:
    """The smallest and the largest that are drawn: those it takes, alone and far larger ones left out."""
    if world_size is not None:
        size = scenario.with_world_size(world_size).world_size
        return size, size
    own, most = scenario.world_size, scenario.max_world_size
    largest = own + _MORE_RANKS
    least = max(scenario.min_world_size, min(2, own))
    return min(least, own), largest if most is None else max(own, min(largest, most))


def saved_name(name: str, corpus: Path) -> str:
    """What a file in the corpus calls the scenario: a name as it is, a Python file by its way from there.

    Raises UsageError for a file that has only the name of another one.
    """
    scenario = load(name)
    if training_in(scenario) is not None or program_in(scenario) is not None:
        return name
    if name.endswith(".toml"):
        raise UsageError(f"{name} names another scenario, expected one of its own: fuzz the scenario that it names")
    file, colon, function = name.rpartition(":")
    return f"{relpath(file, corpus)}{colon}{function}" if file.endswith(".py") else name
