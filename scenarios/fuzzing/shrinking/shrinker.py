"""The public function `shrink_scenario`: the simplest scenario that fails as the given one does.

A schedule of one program rarely fits a simpler program. So for each simpler program a small search is made: the choices
of the program before it, round robin, a few executions of DPOR (dynamic partial-order reduction), and a few random
walks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from ddpsim import Budget, Result, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.value_scenarios import program_of_scenario, training_of_scenario
from ddpsim.scenarios.fuzzing.shrinking.candidate import (
    ScenarioCandidate,
    key_of_candidate,
    passes_for_scenario,
    size_of_candidate,
)
from ddpsim.scenarios.model import Expectation, Scenario
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.scenarios.running.silence import hide_program_output
from ddpsim.simulator.choices import RedundantRun, without_trailing_defaults
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.policies.named import RandomWalk
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.shrinking.greedy import (
    FailureKind,
    OnShrinkProgress,
    ShrinkAttempt,
    ShrinkEnd,
    Size,
    failure_kind_of,
    shrink_value,
)
from ddpsim.simulator.shrinking.shrunk_schedule import SHRINKING_BUDGET
from ddpsim.simulator.wording import count_with_noun


@dataclass(frozen=True, slots=True)
class ShrunkScenario:
    """The result of shrinking a scenario."""

    scenario: Scenario
    """The simplest scenario found that fails in the same way. It contains the schedule and engine under which it
    fails."""
    result: Result
    """The result of running this scenario again. If `end` is flaky, the repeated run did not fail in the same way."""
    size_before: Size
    size: Size
    tries: int
    """The number of scenarios that were tried."""
    executions: int
    """The number of runs in which those scenarios were tried."""
    end: ShrinkEnd
    seconds: float

    @property
    def is_minimal(self) -> bool:
        """Return True if no single step makes the scenario simpler; if False, a simpler failing scenario may exist."""
        return self.end is ShrinkEnd.MINIMAL


def shrink_scenario(
    scenario: Scenario | str,
    engine: str | Engine | None = None,
    *,
    budget: Budget | None = None,
    on_progress: OnShrinkProgress | None = None,
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
    own: Scenario, engine: str | Engine | None, budget: Budget | None, on_progress: OnShrinkProgress | None
) -> ShrunkScenario:
    chosen = replace(own, engine=own.engine_named(engine))
    failure = run_scenario(chosen)
    if isinstance(chosen.program, Script):  # it may have started its own ranks, and chosen their number
        chosen = chosen.with_world_size(failure.world_size)
    expected = chosen.expected_by(chosen.engine)
    kind = failure_kind_of(failure, f"{own.name} on {failure.world_size} ranks")
    same = SameFailure(kind, chosen.engine, not expected.is_met_by(failure))
    start = ScenarioCandidate(replace(chosen, choices=without_trailing_defaults(failure.schedule.choices)))
    again = run_scenario(start.scenario)
    shrunk = shrink_value(
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
        ShrinkEnd.FLAKY if is_flaky else shrunk.end,
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
"""The numbers of executions in such a search: by DPOR, and by random walks."""


@dataclass(frozen=True, slots=True)
class SameFailure:
    """The condition for a run's result to count as the same failure."""

    failure: FailureKind
    engine: Engine
    is_surprise: bool
    """True if the scenario did not expect the failure. Then a simpler scenario must not expect the failure either."""

    def is_shown_by(self, scenario: Scenario, result: Result) -> bool:
        """Return True if the result of a scenario shows the same failure."""
        is_expected = self.is_surprise and scenario.expected_by(self.engine).is_met_by(result)
        return self.failure.matches_result(result) and not is_expected


def try_candidate(candidate: ScenarioCandidate, same: SameFailure) -> ShrinkAttempt[ScenarioCandidate]:
    """Run a candidate for a simpler scenario under its own schedule, or under several schedules."""
    scenario, executions = candidate.scenario, 0
    try:
        for result in _run_candidate(candidate, same.engine):
            executions += 1
            if same.is_shown_by(scenario, result):
                choices = without_trailing_defaults(result.schedule.choices)
                return ShrinkAttempt(ScenarioCandidate(replace(scenario, choices=choices)), executions)
    except UsageError:  # a scenario that is refused does not fail
        return ShrinkAttempt(None, executions + 1)
    return ShrinkAttempt(None, executions)


def _run_candidate(candidate: ScenarioCandidate, engine: Engine) -> Iterator[Result]:
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


def size_text(scenario: Scenario, size: Size) -> str:
    """Return the known parts of a scenario's size as text. The iterations of a function are not known."""
    parts = [count_with_noun(size.ranks, "rank")]
    if training_of_scenario(scenario) is not None:
        parts.append(count_with_noun(size.steps, "iteration"))
    elif program_of_scenario(scenario) is not None:
        parts.append(count_with_noun(size.calls, "call"))
    return ", ".join([*parts, count_with_noun(size.switches, "switch", "switches")])
