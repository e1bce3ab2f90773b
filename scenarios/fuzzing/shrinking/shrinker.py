"""The public function `shrink_scenario`: the simplest scenario that fails as the given one does.

A schedule of one program rarely fits a simpler program. So each simpler program is run under several schedules: the one
under which the previous program failed, round robin, some of DPOR (dynamic partial-order reduction), and a few random
walks.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from ddpsim import Budget, Result, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.value_scenarios import (
    program_of_scenario,
    scenario_of_program,
    scenario_of_training,
    training_of_scenario,
)
from ddpsim.scenarios.fuzzing.shrinking import training_passes
from ddpsim.scenarios.fuzzing.shrinking.training_passes import DeclaredTraining
from ddpsim.scenarios.model import Expectation, Scenario
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.scenarios.running.silence import hide_program_output
from ddpsim.scenarios.training.models import make_meta_network
from ddpsim.scenarios.training.parallel_limits import find_problems
from ddpsim.simulator.choices import RedundantRun, without_trailing_defaults
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.policies.named import RandomWalk
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.programs.program import Program
from ddpsim.simulator.shrinking import greedy, program_passes, shrunk_schedule
from ddpsim.simulator.shrinking.shrunk_schedule import SHRINKING_BUDGET
from ddpsim.simulator.wording import count_with_noun


@dataclass(frozen=True, slots=True)
class ShrunkScenario:
    """The result of shrinking a scenario."""

    scenario: Scenario
    """The simplest scenario found that fails in the same way. It has the schedule and engine under which it fails."""
    result: Result
    """The result of running this scenario again. If `end` is flaky, the repeated run did not fail in the same way."""
    size_before: greedy.FailureSize
    size: greedy.FailureSize
    tries: int
    """The number of scenarios that were tried."""
    executions: int
    """The number of runs in which those scenarios were tried."""
    end: greedy.ShrinkEnd
    seconds: float

    @property
    def is_minimal(self) -> bool:
        """Return True if no single step makes the scenario simpler; if False, a simpler failing scenario may exist."""
        return self.end is greedy.ShrinkEnd.MINIMAL


def shrink_scenario(
    scenario: Scenario | str,
    engine: str | Engine | None = None,
    *,
    budget: Budget | None = None,
    on_progress: greedy.OnShrinkProgress | None = None,
) -> ShrunkScenario:
    """Make a failing scenario, or the one of that name, simpler while it fails with the same leading code.

    First the number of ranks is reduced, then the iterations of a declared training or the calls of a program, then
    their options, last the switches of the schedule; simulator/shrinking/greedy.py defines the order. If a scenario is
    a function, only ranks and schedule can change. Engine and schedule are the scenario's own unless an engine is
    given. If the scenario does not expect its failure, the simpler one does not either.

    The budget, 5000 executions and 60 seconds by default, is for all runs together. When it is used up, or after
    Ctrl-C, the simplest scenario so far is returned. If the failure does not repeat under its own schedule, `end` is
    flaky.

    Raises UsageError for a scenario that does not fail, and for one that cannot be run.
    """
    own = load(scenario) if isinstance(scenario, str) else scenario
    with hide_program_output(own):
        return _shrink_loaded_scenario(own, engine, budget, on_progress)


def _shrink_loaded_scenario(
    own: Scenario, engine: str | Engine | None, budget: Budget | None, on_progress: greedy.OnShrinkProgress | None
) -> ShrunkScenario:
    chosen = replace(own, engine=own.engine_named(engine))
    failure = run_scenario(chosen)
    if isinstance(chosen.program, Script):  # it may have started its own ranks, and chosen their number
        chosen = chosen.with_world_size(failure.world_size)
    expected = chosen.expected_by(chosen.engine)
    kind = greedy.failure_kind_of(failure, f"{own.name} on {failure.world_size} ranks")
    same = SameFailure(kind, chosen.engine, not expected.is_met_by(failure))
    start = ScenarioCandidate(replace(chosen, choices=without_trailing_defaults(failure.schedule.choices)))
    again = run_scenario(start.scenario)
    shrunk = greedy.shrink_value(
        start,
        passes_for_scenario(chosen) if same.is_shown_by(start.scenario, again) else (),
        partial(try_candidate, same=same),
        size=size_of_candidate,
        key=key_of_candidate,
        budget=budget or SHRINKING_BUDGET,
        on_progress=on_progress,
    )
    simplest = shrunk.value.scenario
    result = run_scenario(simplest) if shrunk.tries else again
    is_flaky = not same.is_shown_by(simplest, result)
    return ShrunkScenario(
        simplest if same.is_surprise or is_flaky else _with_found_expectation(simplest, result),
        result,
        size_of_candidate(start),
        shrunk.size,
        shrunk.tries,
        shrunk.executions,
        greedy.ShrinkEnd.FLAKY if is_flaky else shrunk.end,
        shrunk.seconds,
    )


def _with_found_expectation(scenario: Scenario, result: Result) -> Scenario:
    """Return the scenario with the failure that was found as its expectation, unless it already expects a failure."""
    if scenario.expected_by(scenario.engine).is_met_by(result):
        return scenario
    leading = result.findings[0]
    expected = Expectation(result.verdict, leading.code, leading.ranks)
    reference = scenario.reference if leading.code.value.startswith("divergence.") else None
    return replace(scenario, expected=expected, expected_under_ddp=None, reference=reference)


_EXPLORED = 20
_WALKS = 4
"""How many schedules of DPOR, and how many random walks, are tried for one simpler program."""


@dataclass(frozen=True, slots=True)
class SameFailure:
    """The condition under which a simpler scenario counts as failing in the same way."""

    failure: greedy.FailureKind
    engine: Engine
    is_surprise: bool
    """True if the scenario did not expect the failure. Then a simpler scenario must not expect the failure either."""

    def is_shown_by(self, scenario: Scenario, result: Result) -> bool:
        """Return True if the result of a scenario shows the same failure."""
        is_expected = self.is_surprise and scenario.expected_by(self.engine).is_met_by(result)
        return self.failure.matches_result(result) and not is_expected


def try_candidate(candidate: "ScenarioCandidate", same: SameFailure) -> "greedy.ShrinkAttempt[ScenarioCandidate]":
    """Run a candidate under its own schedule, or under several, until it fails in the same way."""
    scenario, executions = candidate.scenario, 0
    try:
        for result in _run_candidate(candidate, same.engine):
            executions += 1
            if same.is_shown_by(scenario, result):
                choices = without_trailing_defaults(result.schedule.choices)
                return greedy.ShrinkAttempt(ScenarioCandidate(replace(scenario, choices=choices)), executions)
    except UsageError:  # a scenario that is refused does not fail
        return greedy.ShrinkAttempt(None, executions + 1)
    return greedy.ShrinkAttempt(None, executions)


def _run_candidate(candidate: "ScenarioCandidate", engine: Engine) -> Iterator[Result]:
    scenario = candidate.scenario
    yield run_scenario(scenario, engine, policy=GuidedPolicy(scenario.choices))
    if candidate.has_own_schedule or not scenario.choices:
        return
    yield from _search_schedules(scenario, engine)


def _search_schedules(scenario: Scenario, engine: Engine) -> Iterator[Result]:
    """Yield the executions of DPOR, starting with round robin; then random walks, unless DPOR is complete."""
    strategy = Dpor(scenario.world_size)
    for _ in range(_EXPLORED):
        policy = strategy.next_policy()
        if policy is None:
            return
        try:
            result = run_scenario(scenario, engine, policy=policy)
        except RedundantRun:
            continue
        with suppress(RedundantRun):
            strategy.take(result)
        yield result
    for seed in range(_WALKS):
        yield run_scenario(scenario, engine, policy=RandomWalk(seed))


def size_text(scenario: Scenario, size: greedy.FailureSize) -> str:
    """Return the known parts of a scenario's size as text. The iterations of a function are not known."""
    parts = [count_with_noun(size.ranks, "rank")]
    if training_of_scenario(scenario) is not None:
        parts.append(count_with_noun(size.steps, "iteration"))
    elif program_of_scenario(scenario) is not None:
        parts.append(count_with_noun(size.calls, "call"))
    return ", ".join([*parts, count_with_noun(size.switches, "switch", "switches")])


# --- a scenario as a value to shrink, and the passes that make it smaller ---------------------------------------------

_MOST_SIZES = 8
"""How many of the smallest world sizes are tried. Half of the ranks and one rank less are tried, too."""


class ScenarioCandidate(NamedTuple):
    """A candidate for a simpler scenario; a run shows whether it still fails."""

    scenario: Scenario
    has_own_schedule: bool = True
    """False if its schedule was recorded with another scenario, so that other schedules have to be tried, too."""


def size_of_candidate(candidate: ScenarioCandidate) -> greedy.FailureSize:
    """Return a candidate's size, by which they are compared: ranks, iterations or calls, options and schedule."""
    scenario = candidate.scenario
    part = _shrinkable_part(scenario)
    if isinstance(part, DeclaredTraining):
        size = training_passes.size_of_training(part)
    else:
        size = greedy.FailureSize(scenario.world_size, 0) if part is None else program_passes.size_of_program(part)
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


def passes_for_scenario(scenario: Scenario) -> Sequence[greedy.ShrinkPass[ScenarioCandidate]]:
    """Return the passes that can shrink a scenario of this kind; the passes for its schedule come last."""
    part = _shrinkable_part(scenario)
    passes: list[greedy.ShrinkPass[ScenarioCandidate]] = [_reduce_world_size]
    if part is not None:
        of_part: Sequence[greedy.ShrinkPass[Any]] = (
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
    shrink_pass: greedy.ShrinkPass[DeclaredTraining | Program], candidate: ScenarioCandidate
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
    """Return True if a scenario file could declare the training. One that torch refuses fails for another reason."""
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
    shrink_pass: greedy.ShrinkPass[shrunk_schedule.Choices], candidate: ScenarioCandidate
) -> Iterator[ScenarioCandidate]:
    for simpler in shrink_pass(candidate.scenario.choices):
        yield ScenarioCandidate(replace(candidate.scenario, choices=simpler))
