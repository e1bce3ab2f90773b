"""A scenario as a value to make simpler: what it runs on how many ranks, and its schedule."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from ddpsim.scenarios.files.value_scenarios import of_program, of_training, program_in, training_in
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.shrinking import training_passes
from ddpsim.scenarios.shrinking.declared import Declared
from ddpsim.scenarios.shrinking.declared import size_of as size_of_declared
from ddpsim.simulator.programs.program import Program
from ddpsim.simulator.shrinking import program_passes, schedule_passes
from ddpsim.simulator.shrinking.greedy import ShrinkPass
from ddpsim.simulator.shrinking.program_size import size_of as size_of_program
from ddpsim.simulator.shrinking.size import Size

_MOST_SIZES = 8
"""So many world sizes are tried from the least, besides half of the ranks and one less."""


class Candidate(NamedTuple):
    """A scenario that may fail."""

    scenario: Scenario
    has_own_schedule: bool = True
    """False if its choices are those of another one, so that other schedules have to be tried, too."""


Part = TypeVar("Part")


def size_of(candidate: Candidate) -> Size:
    """How large it is."""
    scenario = candidate.scenario
    training, program = training_in(scenario), program_in(scenario)
    size = Size(scenario.world_size, 0)
    if training is not None:
        size = size_of_declared(Declared(training, scenario.world_size, scenario.faults))
    elif program is not None:
        size = size_of_program(program)
    return size.under(scenario.choices)


def key_of(candidate: Candidate) -> Hashable:
    """What it is told apart by from others that come of the same scenario."""
    scenario = candidate.scenario
    # A training has options in dictionaries, which cannot be hashed.
    return scenario.world_size, program_in(scenario) or repr(training_in(scenario)), scenario.faults, scenario.choices


def passes_for(scenario: Scenario) -> Sequence[ShrinkPass[Candidate]]:
    """How such a scenario can be made simpler; its schedule comes last."""
    if training_in(scenario) is not None:
        passes = [_lifted(shrink_pass, _declared_in, _with_declared) for shrink_pass in training_passes.PASSES]
    elif program_in(scenario) is not None:
        passes = [_lifted(shrink_pass, _program_in, _with_program) for shrink_pass in program_passes.PASSES]
    else:
        passes = [_smaller_worlds]
    return [*passes, *(partial(_other_choices, shrink_pass) for shrink_pass in schedule_passes.PASSES)]


def _lifted(
    shrink_pass: ShrinkPass[Part], part_in: Callable[[Scenario], Part], with_part: Callable[[Scenario, Part], Scenario]
) -> ShrinkPass[Candidate]:
    """A pass for what a scenario runs as one for the scenario."""

    def lifted(candidate: Candidate) -> Iterator[Candidate]:
        for part in shrink_pass(part_in(candidate.scenario)):
            made = with_part(candidate.scenario, part)
            # A training that the oracle can judge stays one: another may be a mistake that fails by itself.
            if made.reference is not None or candidate.scenario.reference is None:
                yield Candidate(made, has_own_schedule=False)

    return lifted


def _declared_in(scenario: Scenario) -> Declared:
    training = training_in(scenario)
    assert training is not None
    return Declared(training, scenario.world_size, scenario.faults)


def _with_declared(scenario: Scenario, declared: Declared) -> Scenario:
    """It is compared with the oracle if it was, and if that has something to say."""
    training, world_size, faults = declared
    made = of_training(training, world_size, name=scenario.name, engine=scenario.engine, choices=scenario.choices)
    return replace(
        made,
        about=scenario.about,
        tags=scenario.tags,
        reports=scenario.reports,
        faults=faults,
        reference=made.reference if scenario.reference else None,
    )


def _program_in(scenario: Scenario) -> Program:
    program = program_in(scenario)
    assert program is not None
    return program


def _with_program(scenario: Scenario, program: Program) -> Scenario:
    made = of_program(program, name=scenario.name, engine=scenario.engine, choices=scenario.choices)
    return replace(made, about=scenario.about, tags=scenario.tags, reports=scenario.reports, faults=scenario.faults)


def _smaller_worlds(candidate: Candidate) -> Iterator[Candidate]:
    """On fewer ranks, as far as the scenario is made for them: the least that it is made for first."""
    scenario = candidate.scenario
    size, least = scenario.world_size, scenario.min_world_size
    sizes = {*range(least, min(least + _MOST_SIZES, size)), *(each for each in (size // 2, size - 1) if each >= least)}
    for each in sorted(sizes):
        yield Candidate(replace(scenario, world_size=each), has_own_schedule=False)


def _other_choices(shrink_pass: ShrinkPass[schedule_passes.Choices], candidate: Candidate) -> Iterator[Candidate]:
    for simpler in shrink_pass(candidate.scenario.choices):
        yield Candidate(replace(candidate.scenario, choices=simpler))
