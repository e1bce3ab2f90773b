"""Fuzzing a scenario by name: choose the world sizes to draw, and check whether it sometimes passes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path

from ddpsim import Budget, Code, Pct, Policy, Result, UsageError, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.program_line import with_path, words_of_program
from ddpsim.scenarios.files.value_scenarios import program_in, training_in
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.scenarios.running.silence import silent
from ddpsim.simulator.policies.named import RandomWalk, RoundRobin

_MORE_RANKS = 2
"""How many more ranks than its own a scenario is drawn with, if it accepts them."""
_SEEDS = range(5)


@dataclass(frozen=True, slots=True)
class AlwaysFails:
    """The report that a scenario fails under every schedule that was tried."""

    result: Result
    """The result under the first schedule, or the one that does not end."""
    schedules: int
    is_expected: bool
    """True if the scenario expects exactly these failures."""

    @property
    def hangs(self) -> bool:
        """Return True if a run did not end: then other schedules and engines were not tried."""
        return self.result.verdict is Verdict.UNKNOWN or _is_stuck(self.result)

    def __str__(self) -> str:
        expected = ", as expected" if self.is_expected else ""
        if self.hangs:
            return f"does not end{expected}: no search is possible"
        return f"fails under every schedule tried ({self.schedules}){expected}: no search is needed"


def first_look(
    scenario: Scenario, engine: Engine, seconds: float, *, world_size: int | None = None
) -> AlwaysFails | Result:
    """Run a scenario under round robin, and if it fails, under a few other schedules, until one passes.

    After a hang, or after `seconds`, no other schedule is tried: the hung run may have left a thread that spins.
    """
    deadline, results = time.monotonic() + seconds, list[Result]()
    left = seconds
    policies: list[Policy] = [RoundRobin(), *map(RandomWalk, _SEEDS), *map(Pct, _SEEDS)]
    for policy in policies:
        with silent(scenario):
            results.append(
                run_scenario(scenario, engine, policy=policy, budget=Budget(seconds=left), world_size=world_size)
            )
        left = deadline - time.monotonic()
        if _is_stuck(results[-1]) or (results[-1].verdict is Verdict.UNKNOWN and left <= 0):
            results = results[-1:]
            break
        if results[-1].verdict is not Verdict.FAIL:
            return results[-1]
        if left <= 0:
            break
    is_expected = all(scenario.expected_by(engine).is_met_by(result) for result in results)
    return AlwaysFails(results[0], len(results), is_expected)


def _is_stuck(result: Result) -> bool:
    return any(finding.code is Code.STUCK for finding in result.findings)


def default_engine(name: str) -> str:
    """Return the default engine: both for a scenario, torch's for a program."""
    return Engine.TORCH.value if words_of_program(name) else "both"


def world_sizes(scenario: Scenario, world_size: int | None) -> tuple[int, int]:
    """Return the smallest and largest world size to draw, from those that the scenario and its faults accept."""
    if world_size is not None:
        size = scenario.with_world_size(world_size).world_size
        return size, size
    own, most = scenario.world_size, scenario.max_world_size
    largest = own + _MORE_RANKS
    least = max(scenario.min_world_size, min(2, own), *(fault.rank + 1 for fault in scenario.faults))
    return min(least, own), largest if most is None else max(own, min(largest, most))


def saved_name(name: str, corpus: Path) -> str:
    """Return the name of a scenario as a corpus file refers to it: a Python file by its path from there.

    Raises UsageError for a file that only names another scenario.
    """
    scenario = load(name)
    if training_in(scenario) is not None or program_in(scenario) is not None:
        return name
    if name.endswith(".toml"):
        raise UsageError(f"{name} only refers to another scenario: fuzz that scenario")
    return with_path(name, lambda file: relpath(file, corpus))
