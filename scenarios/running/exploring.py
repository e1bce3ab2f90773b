"""Explore a scenario: run it under many schedules, on either engine.

Each run is compared with the oracle, if the scenario has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ddpsim import Budget, Exploration, Progress, Result, Verdict, explore
from ddpsim.scenarios import engines
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.run_as import run_keywords
from ddpsim.scenarios.running.runner import (
    check_engine_options,
    check_is_simulated,
    check_ranks_communicated,
    replay_command,
)
from ddpsim.scenarios.running.silence import hide_program_output
from ddpsim.scenarios.training.divergence import find_divergence
from ddpsim.simulator.exploration.strategy import ForwardingStrategy, Strategy, strategy_by_name
from ddpsim.simulator.launching.script import with_hash_seed
from ddpsim.simulator.policies.named import DEFAULT_EXPLORING
from ddpsim.simulator.verdict import Finding


def explore_scenario(
    scenario: Scenario | str,
    engine: str | Engine | None = None,
    *,
    policy: str = DEFAULT_EXPLORING,
    seed: int = 0,
    depth: int | None = None,
    preemptions: int | None = None,
    transport: str = "memory",
    world_size: int | None = None,
    budget: Budget | None = None,
    keep_going: bool = False,
    check_determinism: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
) -> Exploration:
    """Run a scenario, or the one of that name, under many schedules; see `ddpsim.explore` for the options.

    Each run is judged as by `run_scenario`. Raises UsageError for what cannot be run.
    """
    check_is_simulated(transport, "only a simulation has schedules")
    own = load(scenario) if isinstance(scenario, str) else scenario
    engine = own.engine_named(engine)
    # An exploration has one world size: a program that starts its own ranks may not use another.
    chosen = own.with_world_size(own.world_size if world_size is None else world_size)
    check_engine_options(chosen, engine)
    strategy = strategy_by_name(policy, chosen.world_size, seed=seed, depth=depth, preemptions=preemptions)
    with engines.install_engine(engine), hide_program_output(chosen), with_hash_seed(chosen.hash_seed):
        exploration = explore(
            engines.program_for_engine(chosen.program, engine),
            chosen.world_size,
            policy=_ComparedWithReference(strategy, chosen),
            budget=budget,
            check_determinism=check_determinism,
            keep_going=keep_going,
            alike=chosen.alike,
            on_progress=on_progress,
            **run_keywords(chosen, transport),
        )

    shown: dict[str, Any] = {"first_pass": exploration.first_pass, "first_failure": exploration.first_failure}
    for name, result in shown.items():
        if result is not None:
            check_ranks_communicated(chosen, result)
            shown[name] = result.with_replay(replay_command(result, own, engine, transport))
    return dataclasses.replace(exploration, **shown)


class _ComparedWithReference(ForwardingStrategy):
    """An exploration strategy that also compares each execution with the scenario's reference, the correct result."""

    def __init__(self, strategy: Strategy, scenario: Scenario) -> None:
        super().__init__(strategy)
        reference = scenario.reference
        self._expected = None if reference is None else reference(scenario.world_size)

    def take(self, result: Result) -> Finding | None:
        """Return the finding of the wrapped strategy, or a finding on how the execution differs from the reference."""
        found = super().take(result)
        if found is not None or self._expected is None or result.verdict is not Verdict.PASS:
            return found
        return find_divergence(self._expected, result)
