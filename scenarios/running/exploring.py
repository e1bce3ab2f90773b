"""Explore a scenario: run it under many schedules, on either engine, and compare a failure with the closest pass.

Each run is compared with the oracle, if the scenario has one.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any
from uuid import uuid4

from ddpsim import Budget, Exploration, Policy, Progress, Result, Schedule, UsageError, Verdict, explore
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
    run_scenario,
)
from ddpsim.scenarios.running.silence import hide_program_output
from ddpsim.scenarios.training.reference import find_divergence
from ddpsim.simulator.api import EXPLORATION_BUDGET, name_parting
from ddpsim.simulator.choices import program_identity
from ddpsim.simulator.exploration.divergence_point import DivergencePoint, find_closest_pass
from ddpsim.simulator.exploration.explorer import RunPolicy, with_finding
from ddpsim.simulator.exploration.strategy import strategy_by_name
from ddpsim.simulator.exploration.workers import Workers
from ddpsim.simulator.launching.script import Script, with_hash_seed
from ddpsim.simulator.policies.named import DEFAULT_EXPLORING, RandomWalk, uses_seed
from ddpsim.simulator.policies.schedule_replay import ReplayPolicy
from ddpsim.simulator.transcript import TakenChoice
from ddpsim.simulator.verdict import Code


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
    jobs: int | Workers | None = None,
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
    workers = jobs if isinstance(jobs, Workers) else Workers(jobs)
    keywords = run_keywords(chosen, transport)
    keywords["poison"] = chosen.poison is not False  # as `explore` takes it, so that a failure is repeated alike
    exploration = explore(
        engines.program_for_engine(chosen.program, engine),
        chosen.world_size,
        policy=strategy,
        budget=budget,
        check_determinism=check_determinism,
        keep_going=keep_going,
        alike=chosen.alike,
        on_progress=on_progress,
        jobs=dataclasses.replace(workers, within=_WithinScenario(_LoadedFile(own.name), chosen, engine)),
        **keywords,
    )
    if (failure := exploration.first_failure) is not None and not exploration.interrupted:
        with suppress(KeyboardInterrupt), _installed(chosen, engine):
            program = engines.program_for_engine(chosen.program, engine)
            named = name_parting(failure, program, chosen.world_size, **keywords)
            exploration = dataclasses.replace(exploration, first_failure=named)

    kept = ("first_pass", "first_failure", "interrupted_run")
    shown: dict[str, Any] = {name: getattr(exploration, name) for name in kept}
    for name, result in shown.items():
        if result is not None:
            check_ranks_communicated(chosen, result)
            shown[name] = result.with_replay(replay_command(result, own, engine, transport))
    return dataclasses.replace(exploration, **shown)


@contextmanager
def _installed(scenario: Scenario, engine: Engine) -> Iterator[None]:
    with engines.install_engine(engine), hide_program_output(scenario), with_hash_seed(scenario.hash_seed):
        yield


@dataclasses.dataclass(frozen=True)
class _LoadedFile:
    """Stands for the file of a scenario, which a process loads when it is sent this."""

    name: str
    exploration: str = dataclasses.field(default_factory=lambda: uuid4().hex)

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_file_once, (self.name, self.exploration)


@cache
def _load_file_once(name: str, exploration: str) -> _LoadedFile:
    with suppress(UsageError):  # a scenario that Python has made is in no file
        load(name)
    return _LoadedFile(name, exploration)


@dataclasses.dataclass(frozen=True)
class _WithinScenario:
    """The context of a scenario's executions, which compares each with the reference, the correct result."""

    file: _LoadedFile
    """The first field: only then does pickle find functions of the file."""
    scenario: Scenario
    engine: Engine

    @contextmanager
    def __call__(self, run: RunPolicy) -> Iterator[RunPolicy]:
        reference = self.scenario.reference
        expected = None if reference is None else reference(self.scenario.world_size)

        def run_and_compare(policy: Policy, budget: Budget) -> Result:
            result = run(policy, budget)
            if expected is None or result.verdict is not Verdict.PASS:
                return result
            return with_finding(result, find_divergence(expected, result))

        with _installed(self.scenario, self.engine):
            yield run_and_compare


_RANDOM_SCHEDULES = 4
"""The number of random schedules to try if no run has passed. It is also the number of random continuations to try
after each beginning of the failing schedule that is kept, if runs need no processes."""
_LEAST_SECONDS = 1.0
"""The shortest time limit of a single run."""


def explore_with_closest_pass(
    exploration: Exploration,
    scenario: Scenario,
    engine: Engine,
    *,
    transport: str = "memory",
    policy: str = DEFAULT_EXPLORING,
    seconds: float = EXPLORATION_BUDGET.seconds,
) -> tuple[Exploration, DivergencePoint | None]:
    """Return the exploration with the passing run that follows the failing schedule longest, and where they part.

    Return the exploration unchanged, and None, if nothing failed, if no passing schedule is found within `seconds`, if
    runs do not repeat, or after Ctrl-C.
    """
    failing = exploration.first_failure
    if exploration.interrupted or failing is None or (exploration.complete and exploration.first_pass is None):
        return exploration, None
    # These failures depend on more than the schedule, or each run needs long to show them.
    if any(finding.code in (Code.NONDETERMINISM, Code.STUCK) for finding in failing.findings):
        return exploration, None
    explored = dataclasses.replace(scenario, poison=scenario.poison is not False)
    program, start = program_identity(scenario.name, failing.world_size), failing.schedule.start
    end = time.monotonic() + seconds
    ways = 0 if scenario.isolation == "process" or isinstance(scenario.program, Script) else _RANDOM_SCHEDULES

    def run_under(policy: Policy) -> Result:
        budget = Budget(seconds=max(end - time.monotonic(), _LEAST_SECONDS))
        size = failing.world_size
        with hide_program_output(scenario):
            result = run_scenario(explored, engine, transport=transport, world_size=size, policy=policy, budget=budget)
        return result.with_replay(replay_command(result, scenario, engine, transport))

    def run_with_choices(choices: tuple[int, ...]) -> tuple[Result, Sequence[TakenChoice]]:
        policy = ReplayPolicy(Schedule(choices, program, start), keeps_choices=True)
        return run_under(policy), policy.choices

    search = partial(
        find_closest_pass, failing, run=run_with_choices, drawn=ways, is_over=lambda: time.monotonic() > end
    )
    try:
        found = search(exploration.first_pass)
        if found is None and exploration.first_pass is None and uses_seed(policy):
            drawn = (run_under(RandomWalk(seed)) for seed in range(_RANDOM_SCHEDULES))
            passing = next((result for result in drawn if result.verdict is Verdict.PASS), None)
            found = None if passing is None else search(passing)
    except KeyboardInterrupt:
        found = None
    if found is None:
        return exploration, None
    return dataclasses.replace(exploration, first_pass=found[0]), found[1]
