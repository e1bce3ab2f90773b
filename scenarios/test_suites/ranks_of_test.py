"""Runs the ranks that a test starts, and keeps the outcome. Adapters of harnesses call `RanksOfTest.run`.

A test may be attempted several times: with ranks as threads, as processes, and with other schedules. An attempt has
its `Terms`, and applies them to each run that the test starts.
"""

import logging
import os
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any

import pytest
from torch.distributed import distributed_c10d

from ddpsim import Budget, Code, Result, UsageError, Verdict, simulate
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
from ddpsim.simulator.choices import Policy, RedundantRun
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.hosts import RankHost, common_variables
from ddpsim.simulator.policies.named import DEFAULT
from ddpsim.simulator.runtime.replaced import ReplacedAttributes


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
    polls: int = Budget().polls
    """The limit of polls in a row that change nothing, of each run."""


@dataclass
class Attempt:
    """What one attempt at a test has run."""

    item: pytest.Function
    terms: Terms
    results: list[Result] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """The attributes of modules that ranks as threads have changed: each real rank would have its own."""
    has_failed: bool = False
    """True if a run was no pass, or the test itself failed."""
    has_threads: bool = False
    is_bound_to_threads: bool = False
    """True if the harness itself runs ranks as threads, so that they are meant to share what they share."""
    is_redundant: bool = False
    """True if the policy has broken off the first run, as it would repeat another one: there is no outcome."""

    @property
    def why_processes(self) -> str:
        """Why the test has to run again with ranks as processes; "" if its outcome is known."""
        if not self.has_threads or self.is_bound_to_threads:
            return ""
        if self.changed:
            return f"ranks change {self.changed[0]}"
        found = [finding for result in self.results for finding in result.findings]
        if shared := [finding.summary for finding in found if finding.code is Code.HAZARD_SHARED_PROCESS]:
            return shared[0]
        return "it fails on threads" if self.has_failed else ""

    def row(self, why: str) -> SuiteRow:
        """Return the attempt as a row of the suite's summary; `why` says why its ranks are processes."""
        is_process = bool(self.results) and not self.has_threads
        found = [finding for result in self.results for finding in result.findings]
        found.sort(key=lambda each: each.code.verdict is Verdict.PASS)  # hazards last
        hazards = {str(each.code) for each in found if each.code.verdict is Verdict.PASS}
        sites = (site for each in found[:1] for site in each.sites if site.path and not site.is_foreign)
        folder = self.item.config.invocation_params.dir
        return SuiteRow(
            ranks=", ".join(str(each.world_size) for each in self.results),
            isolation="process" if is_process else "thread",
            why=why if is_process else "",
            codes=", ".join(dict.fromkeys(str(each.code) for each in found if str(each.code) not in hazards)),
            hazards=", ".join(dict.fromkeys(str(each.code) for each in found if str(each.code) in hazards)),
            at=next((f"{os.path.relpath(site.path, folder)}:{site.line}" for site in sites), ""),
            what=found[0].summary if found else "",
        )


class RanksRaisedError(RuntimeError):
    """A rank raised an error, which is the cause; the text is that of the harness. Tests of harnesses expect it."""


def _has_outlived_mismatch(result: Result) -> bool:
    """Return whether a mismatch was raised in the ranks (TORCH_DISTRIBUTED_DEBUG=DETAIL), and all have caught it."""
    returned = {event.rank for event in result.trace if event.kind is EventKind.RETURN}
    failing = [each for each in result.findings if each.code.verdict is not Verdict.PASS]
    is_mismatch = bool(failing) and all(each.code.value.startswith("mismatch.") for each in failing)
    return is_mismatch and not result.errors and len(returned) == result.world_size


class RanksOfTest:
    """Runs ranks for the test that is running now."""

    def __init__(self) -> None:
        self.attempt: Attempt | None = None
        self.is_rank = False
        """True in the process of a rank."""

    def result_with(self, error: BaseException) -> Result | None:
        """Return the result of the last run if it is a rank that has raised this error."""
        results = [] if self.attempt is None else self.attempt.results[-1:]
        return next((each for each in results if any(error is own for own in each.errors.values())), None)

    def run(
        self,
        program: Callable[[int], Any],
        world_size: int,
        *,
        function: Any,
        on: str | None = None,
        has_group: bool = False,
        raised: Callable[[BaseException], str] | None = None,
    ) -> tuple[Any, ...]:
        """Run a function on each rank of a new world, and return what the ranks returned.

        Without `has_group`, no group exists until the ranks create it. `on` is the isolation if the harness needs one.
        `raised` makes the text with which the harness itself reports an error of a rank.
        `function` is the function whose file counts as the program's. Raises RanksRaisedError, or without `raised` the
        error of a rank unchanged, and RanksFailed with the diagnosis for any other failure.
        """
        __tracebackhide__ = True
        attempt = self.attempt
        if attempt is None:
            raise RanksFailed(
                "ranks were started outside of a test, expected in one: start them in a fixture or a test"
            )
        if world_size == 0:  # as many as the machine has GPUs, for instance; torch lets such a test pass
            raise unittest.SkipTest("world_size is 0 on this machine: the test starts no rank")
        output, terms = RankOutput(attempt.item), attempt.terms
        attempt.is_bound_to_threads |= on == "thread"
        isolation = on or terms.isolation
        attempt.has_threads |= isolation == "thread"
        environment = {name: os.environ.get(name) for name in common_variables(RankHost(0, world_size))}

        @wraps(function, assigned=(), updated=())  # as `begin_function` reads it
        def run_rank(rank: int) -> Any:
            __tracebackhide__ = True
            self.is_rank = isolation == "process"
            if isolation == "thread":
                output.install_streams(rank)
            if not has_group:
                _take_environment(environment)
            return program(rank)

        states = ModuleStates(only_torch=on == "thread") if isolation == "thread" else None
        world: Any = distributed_c10d._world
        default, world._default_pg = world._default_pg, None  # a group of the test's own process is no rank's
        try:
            with _process_kept(attempt) if isolation == "thread" else nullcontext():
                result = self._simulate(run_rank, world_size, attempt, isolation, has_group)
        except RedundantRun:
            attempt.is_redundant = True
            raise
        except UsageError as error:
            raise RanksFailed(str(error)) from None
        finally:
            world._default_pg = default
            attempt.changed += [] if states is None else states.take_back()
        attempt.results.append(result)
        run = RunOfTest(result, output)
        failure = None if _has_outlived_mismatch(result) else failure_of_run(run, None)
        attempt.has_failed |= failure is not None
        attempt.item.stash[RUN] = replace(run, error=failure)
        attempt.item.stash[OPTIONS_KEY] = MarkerOptions(world_size)  # reported as a marked test is
        if raised is not None and isinstance(failure, Exception):
            raise RanksRaisedError(raised(failure)) from failure
        if failure is not None:
            raise failure
        return result.returns

    def _simulate(
        self, run_rank: Callable[[int], Any], world_size: int, attempt: Attempt, isolation: str, has_group: bool
    ) -> Result:
        """Run the ranks under the attempt's schedule; the second run of a test, and later ones, by turns."""
        terms, number = attempt.terms, len(attempt.results)
        gpus = attempt.item.config.getoption("ddpsim_gpus") if isolation == "process" else None
        name = name_of_run(attempt.item, number)
        options: dict[str, Any] = {
            "name": name,
            "isolation": isolation,
            "default_group": has_group,
            "gpus": gpus,
            "budget": Budget(steps=MOST_STEPS, seconds=terms.seconds, polls=terms.polls),
        }
        if terms.token is not None and number == 0:
            result, failure = replay_test(run_rank, world_size, terms.token, options, is_strict=True)
            if failure is not None:
                raise failure
        else:
            policy = terms.policy if number == 0 and not attempt.is_redundant else DEFAULT
            result = simulate(run_rank, world_size, policy=policy, seed=terms.seed, **options)
        again = replay_command(attempt.item, str(result.schedule))
        how = f"--ddpsim-isolation {isolation}" if gpus is None else f"--ddpsim-gpus {gpus}"
        return result.with_replay(f"{again} --ddpsim {how}")


@contextmanager
def _process_kept(attempt: Attempt) -> Iterator[None]:
    """Keep the process, in which ranks are threads, from a rank that ends it, and keep its working directory."""
    folder, process, replaced = os.getcwd(), os.getpid(), ReplacedAttributes()
    root, makes_records = logging.getLogger(), logging.getLogRecordFactory()
    handlers, level = list(root.handlers), root.level

    def end_rank(original: Callable[..., Any], *arguments: int) -> None:
        is_own = len(arguments) == 1 or arguments[0] in (process, threading.get_native_id())
        only_asks = arguments[1:] == (0,)  # os.kill with signal 0
        if os.getpid() != process or not is_own or only_asks:
            original(*arguments)
            return
        attempt.changed.append(f"the process by os.{original.__name__}")
        raise SystemExit(arguments[-1])

    for name in ("_exit", "kill"):
        replaced.replace_attribute(os, name, lambda original: partial(end_rank, original))
    try:
        yield
    finally:
        replaced.restore_attributes()
        if (root.handlers, root.level, logging.getLogRecordFactory()) != (handlers, level, makes_records):
            attempt.changed.append("logging")
            logging.setLogRecordFactory(makes_records)
            root.handlers[:] = handlers
            root.setLevel(level)
        with suppress(FileNotFoundError):
            folder = "" if os.getcwd() == folder else folder
        if folder:  # a rank has left it, or has removed where it went
            attempt.changed.append("the working directory")
            os.chdir(folder)


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
