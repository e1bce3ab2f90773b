"""A scenario as a value to shrink, with the passes that make it smaller."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ddpsim.scenarios.files.value_scenarios import of_program, of_training, program_in, training_in
from ddpsim.scenarios.fuzzing.shrinking import training_passes
from ddpsim.scenarios.fuzzing.shrinking.declared import Declared
from ddpsim.scenarios.fuzzing.shrinking.declared import size_of as size_of_declared
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.training.models import outline
from ddpsim.scenarios.training.parallel_limits import problems_of
from ddpsim.simulator.programs.program import Program
from ddpsim.simulator.shrinking import program_passes, shrunk_schedule
from ddpsim.simulator.shrinking.greedy import ShrinkPass, Size
from ddpsim.simulator.shrinking.program_passes import size_of as size_of_program

_MOST_SIZES = 8
"""How many world sizes are tried from the smallest, in addition to half of the ranks and one rank less."""


class Candidate(NamedTuple):
    """A scenario that may fail."""

    scenario: Scenario
    has_own_schedule: bool = True
    """False if its choices come from another scenario, so that other schedules have to be tried, too."""


def size_of(candidate: Candidate) -> Size:
    """Return the size of a candidate: its ranks, iterations or calls, options and schedule."""
    scenario = candidate.scenario
    part = _part_of(scenario)
    if part is None:
        size = Size(scenario.world_size, 0)
    else:
        size = size_of_declared(part) if isinstance(part, Declared) else size_of_program(part)
    return size.under(scenario.choices)


def key_of(candidate: Candidate) -> Hashable:
    """Return a key by which candidates of the same scenario are compared."""
    scenario = candidate.scenario
    # A training has options in dictionaries, which cannot be hashed.
    return scenario.world_size, program_in(scenario) or repr(training_in(scenario)), scenario.faults, scenario.choices


def passes_for(scenario: Scenario) -> Sequence[ShrinkPass[Candidate]]:
    """Return the passes that can shrink such a scenario; those of its schedule come last."""
    part = _part_of(scenario)
    passes: list[ShrinkPass[Candidate]] = [_smaller_worlds]
    if part is not None:
        of_part: Sequence[ShrinkPass[Any]] = (
            training_passes.PASSES if isinstance(part, Declared) else program_passes.PASSES
        )
        passes = [partial(_other_parts, shrink_pass) for shrink_pass in of_part]
    return [*passes, *(partial(_other_choices, shrink_pass) for shrink_pass in shrunk_schedule.PASSES)]


def _part_of(scenario: Scenario) -> Declared | Program | None:
    """Return the training or program of a scenario, which can be shrunk; None for a function."""
    training = training_in(scenario)
    return program_in(scenario) if training is None else Declared(training, scenario.world_size, scenario.faults)


def _other_parts(shrink_pass: ShrinkPass[Declared | Program], candidate: Candidate) -> Iterator[Candidate]:
    part = _part_of(candidate.scenario)
    assert part is not None
    for simpler in shrink_pass(part):
        if isinstance(simpler, Declared) and not _can_be_declared(simpler):
            continue
        made = _with_part(candidate.scenario, simpler)
        # If the oracle can judge the training, keep that: otherwise it may be a mistake that fails for another reason.
        if made.reference is not None or candidate.scenario.reference is None:
            yield Candidate(made, has_own_schedule=False)


def _can_be_declared(declared: Declared) -> bool:
    """Return True if a file could declare it: what torch refuses fails for another reason."""
    training = declared.training
    networks = [outline(each.name, each.options) for each in training.networks] if training.needs_mesh else []
    return not networks or next(problems_of(training, networks, declared.world_size), None) is None


def _with_part(scenario: Scenario, part: Declared | Program) -> Scenario:
    """Return the scenario with another part. The oracle still judges it if it did and supports the part."""
    name, engine, choices = scenario.name, scenario.engine, scenario.choices
    if isinstance(part, Declared):
        made = of_training(part.training, part.world_size, name=name, engine=engine, choices=choices)
    else:
        made = of_program(part, name=name, engine=engine, choices=choices)
    return replace(
        made,
        about=scenario.about,
        tags=scenario.tags,
        reports=scenario.reports,
        faults=part.faults if isinstance(part, Declared) else scenario.faults,
        reference=made.reference if scenario.reference else None,
    )


def _smaller_worlds(candidate: Candidate) -> Iterator[Candidate]:
    """Yield the scenario on fewer ranks, as far as it allows them, the fewest first."""
    scenario = candidate.scenario
    size, least = scenario.world_size, scenario.min_world_size
    sizes = {*range(least, min(least + _MOST_SIZES, size)), *(each for each in (size // 2, size - 1) if each >= least)}
    for each in sorted(sizes):
        yield Candidate(replace(scenario, world_size=each), has_own_schedule=False)


def _other_choices(shrink_pass: ShrinkPass[shrunk_schedule.Choices], candidate: Candidate) -> Iterator[Candidate]:
    for simpler in shrink_pass(candidate.scenario.choices):
        yield Candidate(replace(candidate.scenario, choices=simpler))
