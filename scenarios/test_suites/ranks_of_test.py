"""Runs the ranks that a test starts, and keeps the outcome. Adapters of harnesses call `RanksOfTest.run`.

A test may be attempted several times: with ranks as threads, as processes, and with other schedules. An attempt has
its `Terms`, and applies them to each run that the test starts.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import pytest

from ddpsim import Budget, Result, UsageError, Verdict, simulate
from ddpsim.scenarios.pytest_plugin.failure import (
    RanksFailed,
    RunOfTest,
    failure_of_run,
    replay_command,
    test_name_in_tokens,
)
from ddpsim.scenarios.pytest_plugin.fixtures import OPTIONS_KEY
from ddpsim.scenarios.pytest_plugin.marker import MarkerOptions
from ddpsim.scenarios.pytest_plugin.rank_output import RankOutput
from ddpsim.scenarios.pytest_plugin.running import MOST_STEPS, RUN
from ddpsim.scenarios.pytest_plugin.token_replay import replay_test
from ddpsim.scenarios.test_suites.shared_state import ModuleStates
from ddpsim.scenarios.test_suites.summary import SuiteRow
from ddpsim.simulator.choices import Policy
from ddpsim.simulator.policies.named import DEFAULT
from ddpsim.simulator.rank_processes.own_process import function_rank_environment


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one attempt at a test."""

    isolation: str = "thread"
    """What each rank runs as: "thread" or "process"."""
    policy: str | Policy = DEFAULT
    """The scheduling policy of the test's first run."""
    seed: int = 0
    token: str | None = None
    """A replay token with the schedule of the test's first run."""
    seconds: float = 60.0
    """The time limit of each run."""


@dataclass
class Attempt:
    """What one attempt at a test has run."""

    item: pytest.Function
    terms: Terms
    results: list[Result] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """The attributes of modules that ranks as threads have changed: each real rank would have its own."""
    is_bound_to_threads: bool = False
    """True if the harness itself runs ranks as threads, so that they are meant to share what they share."""

    @property
    def why_processes(self) -> str:
        """Why the test has to run again with ranks as processes; "" if its outcome is known."""
        if self.terms.isolation == "process" or self.is_bound_to_threads or not self.results:
            return ""
        if self.changed:
            return f"ranks change {self.changed[0]}"
        return "" if all(each.verdict is Verdict.PASS for each in self.results) else "it fails on threads"

    def row(self, why: str) -> SuiteRow:
        """Return the attempt as a row of the suite's summary; `why` says why its ranks are processes."""
        is_process = self.terms.isolation == "process" and not self.is_bound_to_threads
        found = [finding for result in self.results for finding in result.findings]
        hazards = {str(each.code) for each in found if each.code.verdict is Verdict.PASS}
        sites = (each.sites[0] for each in found if each.sites and not each.sites[0].is_foreign)
        folder = self.item.config.invocation_params.dir
        return SuiteRow(
            ranks=", ".join(str(each.world_size) for each in self.results),
            isolation="process" if is_process else "thread",
            why=why if is_process else "",
            codes=", ".join(sorted({str(each.code) for each in found} - hazards)),
            hazards=", ".join(sorted(hazards)),
            at=next((f"{os.path.relpath(site.path, folder)}:{site.line}" for site in sites), ""),
            what=found[0].summary if found else "",
        )


class RanksOfTest:
    """Runs ranks for the test that is running now."""

    def __init__(self) -> None:
        self.attempt: Attempt | None = None

    def run(
        self,
        program: Callable[[int], Any],
        world_size: int,
        *,
        told_by: Any,
        on: str | None = None,
        has_group: bool = False,
    ) -> tuple[Any, ...]:
        """Run a function on each rank of a new world, and return what the ranks returned.

        Without `has_group`, no group exists until the ranks create it. `on` is the isolation if the harness needs one.
        `told_by` is the function whose file counts as the program's. Raises the error of a rank
        unchanged, and RanksFailed with the diagnosis for any other failure.
        """
        __tracebackhide__ = True
        attempt = self.attempt
        if attempt is None:
            raise RanksFailed(
                "ranks were started outside of a test, expected in one: start them in a fixture or a test"
            )
        output, terms = RankOutput(attempt.item), attempt.terms
        attempt.is_bound_to_threads |= on == "thread"
        isolation = on or terms.isolation
        environment = {name: os.environ.get(name) for name in function_rank_environment(0, world_size)}

        @wraps(told_by, assigned=(), updated=())  # as `begin_function` reads it
        def run_rank(rank: int) -> Any:
            __tracebackhide__ = True
            if isolation == "thread":
                output.install_streams(rank)
            if not has_group:
                _take_environment(environment)
            return program(rank)

        states = ModuleStates() if isolation == "thread" else None
        try:
            result = self._simulate(run_rank, world_size, attempt, isolation, has_group)
        except UsageError as error:
            raise RanksFailed(str(error)) from None
        if states is not None and on is None and (changed := states.changed_names()):
            attempt.changed += changed
            states.restore()  # the ranks of the next attempt begin as those of this one did
        attempt.results.append(result)
        run = RunOfTest(result, output)
        failure = failure_of_run(run, None)
        attempt.item.stash[RUN] = replace(run, error=failure)
        attempt.item.stash[OPTIONS_KEY] = MarkerOptions(world_size)  # reported as a marked test is
        if failure is not None:
            raise failure
        return result.returns

    def _simulate(
        self, run_rank: Callable[[int], Any], world_size: int, attempt: Attempt, isolation: str, has_group: bool
    ) -> Result:
        """Run the ranks under the attempt's schedule; the second run of a test, and later ones, by turns."""
        terms, number = attempt.terms, len(attempt.results)
        name = name_of_run(attempt.item, number)
        options: dict[str, Any] = {
            "name": name,
            "isolation": isolation,
            "default_group": has_group,
            "budget": Budget(steps=MOST_STEPS, seconds=terms.seconds),
        }
        if terms.token is not None and number == 0:
            result, failure = replay_test(run_rank, world_size, terms.token, options, is_strict=True)
            if failure is not None:
                raise failure
        else:
            policy = terms.policy if number == 0 else DEFAULT
            result = simulate(run_rank, world_size, policy=policy, seed=terms.seed, **options)
        again = replay_command(attempt.item, str(result.schedule))
        return result.with_replay(f"{again} --ddpsim --ddpsim-isolation {isolation}")


def _take_environment(environment: Mapping[str, str | None]) -> None:
    """In a rank: give variables of a launcher the values that they have in the test, as in a process that it starts."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def name_of_run(item: pytest.Function, number: int) -> str:
    """Return the name of a test's run in replay tokens."""
    return test_name_in_tokens(item) + (f"#{number + 1}" if number else "")


def fresh_file() -> str:
    """Return the path of a new empty file, by which the ranks of one run meet."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        return file.name
