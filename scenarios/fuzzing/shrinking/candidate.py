"""A scenario as a value to shrink, and the passes (kinds of simplification) that make it smaller."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ddpsim.scenarios.files.value_scenarios import (
    program_of_scenario,
    scenario_of_program,
    scenario_of_training,
    training_of_scenario,
)
from ddpsim.scenarios.fuzzing.shrinking import training_passes
from ddpsim.scenarios.fuzzing.shrinking.training_passes import DeclaredTraining
from ddpsim.scenarios.fuzzing.shrinking.training_passes import size_of_training as size_of_declared
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.training.models import make_meta_network
from ddpsim.scenarios.training.parallel_limits import find_problems
from ddpsim.simulator.programs.program import Program
from ddpsim.simulator.shrinking import program_passes, shrunk_schedule
from ddpsim.simulator.shrinking.greedy import ShrinkPass, Size
from ddpsim.simulator.shrinking.program_passes import size_of_program as size_of_program

_MOST_SIZES = 8
"""How many of the smallest world sizes are tried, in addition to half of the ranks and one rank less."""


class ScenarioCandidate(NamedTuple):
    """A candidate for a simpler scenario; a run shows whether it still fails."""

    scenario: Scenario
    has_own_schedule: bool = True
    """False if the choices of its schedule come from another scenario, so that other schedules have to be tried,
    too."""


def size_of_candidate(candidate: ScenarioCandidate) -> Size:
    """Return the size of a candidate, by which candidates are compared: ranks, iterations or calls, options and
    schedule."""
    scenario = candidate.scenario
    part = _shrinkable_part(scenario)
    if part is None:
        size = Size(scenario.world_size, 0)
    else:
        size = size_of_declared(part) if isinstance(part, DeclaredTraining) else size_of_program(part)
    return size.with_schedule(scenario.choices)


def key_of_candidate(candidate: ScenarioCandidate) -> Hashable:
    """Return a key that is equal for candidates with the same scenario."""
    scenario = candidate.scenario
    # A training has options in dictionaries, which cannot be hashed.
    return (
        scenario.world_size,
        program_of_scenario(scenario) or repr(training_of_scenario(scenario)),
        scenario.faults,
        scenario.choices,
    )


def passes_for_scenario(scenario: Scenario) -> Sequence[ShrinkPass[ScenarioCandidate]]:
    """Return the passes that can shrink a scenario of this kind; the passes for its schedule come last."""
    part = _shrinkable_part(scenario)
    passes: list[ShrinkPass[ScenarioCandidate]] = [_reduce_world_size]
    if part is not None:
        of_part: Sequence[ShrinkPass[Any]] = (
            training_passes.PASSES if isinstance(part, DeclaredTraining) else program_passes.PASSES
        )
        passes = [partial(_shrink_part, shrink_pass) for shrink_pass in of_part]
    return [*passes, *(partial(_shrink_schedule, shrink_pass) for shrink_pass in shrunk_schedule.PASSES)]


def _shrinkable_part(scenario: Scenario) -> DeclaredTraining | Program | None:
    """Return the part of a scenario that can be shrunk: its training or its program; None for a function."""
    training = training_of_scenario(scenario)
    if training is None:
        return program_of_scenario(scenario)
    return DeclaredTraining(training, scenario.world_size, scenario.faults)


def _shrink_part(
    shrink_pass: ShrinkPass[DeclaredTraining | Program], candidate: ScenarioCandidate
) -> Iterator[ScenarioCandidate]:
    part = _shrinkable_part(candidate.scenario)
    assert part is not None
    for simpler in shrink_pass(part):
        if isinstance(simpler, DeclaredTraining) and not _can_be_declared(simpler):
            continue
        made = _replace_part(candidate.scenario, simpler)
        # If the oracle can judge the training, keep that: otherwise it may be a mistake that fails for another reason.
        if made.reference is not None or candidate.scenario.reference is None:
            yield ScenarioCandidate(made, has_own_schedule=False)


def _can_be_declared(declared: DeclaredTraining) -> bool:
    """Return True if a file could declare the training. A training that torch refuses would fail for another reason."""
    training = declared.training
    networks = [make_meta_network(each.name, each.options) for each in training.networks] if training.needs_mesh else []
    return not networks or next(find_problems(training, networks, declared.world_size), None) is None


def _replace_part(scenario: Scenario, part: DeclaredTraining | Program) -> Scenario:
    """Return the scenario with its training or program replaced.

    The oracle still judges the scenario if it did before and supports the new part.
    """
    name, engine, choices = scenario.name, scenario.engine, scenario.choices
    if isinstance(part, DeclaredTraining):
        made = scenario_of_training(part.training, part.world_size, name=name, engine=engine, choices=choices)
    else:
        made = scenario_of_program(part, name=name, engine=engine, choices=choices)
    return replace(
        made,
        about=scenario.about,
        tags=scenario.tags,
        reports=scenario.reports,
        faults=part.faults if isinstance(part, DeclaredTraining) else scenario.faults,
        reference=made.reference if scenario.reference else None,
    )


def _reduce_world_size(candidate: ScenarioCandidate) -> Iterator[ScenarioCandidate]:
    """Yield the scenario with fewer ranks, fewest first, as far as the scenario allows."""
    scenario = candidate.scenario
    size, least = scenario.world_size, scenario.min_world_size
    sizes = {*range(least, min(least + _MOST_SIZES, size)), *(each for each in (size // 2, size - 1) if each >= least)}
    for each in sorted(sizes):
        yield ScenarioCandidate(replace(scenario, world_size=each), has_own_schedule=False)


def _shrink_schedule(
    shrink_pass: ShrinkPass[shrunk_schedule.Choices], candidate: ScenarioCandidate
) -> Iterator[ScenarioCandidate]:
    for simpler in shrink_pass(candidate.scenario.choices):
        yield ScenarioCandidate(replace(candidate.scenario, choices=simpler))
