"""Fuzzing one scenario, given by name: choose the world sizes to draw, and check whether the scenario ever passes."""

import time
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path

from ddpsim import Budget, Code, Pct, Policy, Result, UsageError, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.program_line import replace_path_in_name
from ddpsim.scenarios.files.value_scenarios import program_of_scenario, training_of_scenario
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.scenarios.running.silence import hide_program_output
from ddpsim.simulator.policies.named import RandomWalk, RoundRobin

_MORE_RANKS = 2
"""How many ranks more than the scenario's own world size may be drawn, if the scenario accepts them."""
_SEEDS = range(5)


@dataclass(frozen=True, slots=True)
class FailsUnderEverySchedule:
    """The report that a scenario fails under every schedule that was tried."""

    result: Result
    """The result of the run under the first schedule, or of the run that does not end."""
    schedules: int
    is_expected: bool
    """True if the scenario expects exactly these failures."""

    @property
    def does_not_end(self) -> bool:
        """Return True if a run did not end. In this case no other schedules and engines were tried."""
        return self.result.verdict is Verdict.UNKNOWN or _has_stuck_rank(self.result)

    def __str__(self) -> str:
        expected = ", as expected" if self.is_expected else ""
        if self.does_not_end:
            return f"does not end{expected}: no search is possible"
        return f"fails under every schedule tried ({self.schedules}){expected}: no search is needed"


def run_under_few_schedules(
    scenario: Scenario, engine: Engine, seconds: float, *, world_size: int | None = None
) -> FailsUnderEverySchedule | Result:
    """Run a scenario under round robin. If it fails, run it under a few other schedules until one run passes.

    After a hang, or after `seconds`, no other schedule is tried, because the hung run may have left a spinning thread.
    """
    deadline, results = time.monotonic() + seconds, list[Result]()
    left = seconds
    policies: list[Policy] = [RoundRobin(), *map(RandomWalk, _SEEDS), *map(Pct, _SEEDS)]
    for policy in policies:
        with hide_program_output(scenario):
            budget = Budget(seconds=left)
            results.append(run_scenario(scenario, engine, policy=policy, budget=budget, world_size=world_size))
        left = deadline - time.monotonic()
        if _has_stuck_rank(results[-1]) or (results[-1].verdict is Verdict.UNKNOWN and left <= 0):
            results = results[-1:]
            break
        if results[-1].verdict is not Verdict.FAIL:
            return results[-1]
        if left <= 0:
            break
    is_expected = all(scenario.expected_by(engine).is_met_by(result) for result in results)
    return FailsUnderEverySchedule(results[0], len(results), is_expected)


def _has_stuck_rank(result: Result) -> bool:
    return any(finding.code is Code.STUCK for finding in result.findings)


def world_sizes_to_draw(scenario: Scenario, world_size: int | None) -> tuple[int, int]:
    """Return the smallest and largest world size to draw, among those that the scenario and its faults accept."""
    if world_size is not None:
        size = scenario.with_world_size(world_size).world_size
        return size, size
    own, most = scenario.world_size, scenario.max_world_size
    largest = own + _MORE_RANKS
    least = max(scenario.min_world_size, min(2, own), *(fault.rank + 1 for fault in scenario.faults))
    return min(least, own), largest if most is None else max(own, min(largest, most))


def name_from_corpus(name: str, corpus: Path) -> str:
    """Return the name by which a corpus file refers to a scenario. A Python file is named by its path from the corpus
    folder. Raises UsageError for a TOML file that itself only refers to another scenario."""
    scenario = load(name)
    if training_of_scenario(scenario) is not None or program_of_scenario(scenario) is not None:
        return name
    if name.endswith(".toml"):
        raise UsageError(f"{name} only refers to another scenario: fuzz that scenario")
    return replace_path_in_name(name, lambda file: relpath(file, corpus))
