"""The pytest plugin of `--ddpsim-ranks N`: runs each test of a suite that is written for torchrun on N simulated ranks.

Each rank has a server (`rank_session.py`) that has collected the suite with the rank's environment. A test is one
simulation: its ranks are forked from the servers, and their reports are merged into one.
"""

import json
import os
import pickle
import shutil
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import pytest
from _pytest.skipping import evaluate_xfail_marks, xfailed_key

from ddpsim import Budget, UsageError, simulate
from ddpsim.scenarios.pytest_plugin.failure import (
    RanksFailed,
    RunOfTest,
    annotate_report,
    failure_of_run,
    replay_command,
    test_name_in_tokens,
)
from ddpsim.scenarios.pytest_plugin.fixtures import OPTIONS_KEY
from ddpsim.scenarios.pytest_plugin.marker import MarkerOptions
from ddpsim.scenarios.pytest_plugin.rank_output import RankOutput, Severity, severity_of_error
from ddpsim.scenarios.pytest_plugin.running import MOST_STEPS, RUN
from ddpsim.scenarios.pytest_plugin.token_replay import replay_test
from ddpsim.scenarios.test_suites import rank_session
from ddpsim.scenarios.test_suites.rank_session import Collection, TestOnRanks, groups_refused, leave_out_xdist
from ddpsim.scenarios.test_suites.ranks_of_test import Attempt
from ddpsim.simulator.errors import SimulatorError
from ddpsim.simulator.hosts import RankHost, torchrun_variables
from ddpsim.simulator.launching.script import program_seeds
from ddpsim.simulator.launching.servers import STANDING, server_keys

NAME = "ddpsim-per-rank"
"""The name under which pytest knows the plugin."""

_MODULES = (rank_session.__name__,)
_MOST_NAMED = 3


class SuiteOnRanks:
    """Runs a session's tests on each rank, with servers that have collected the suite."""

    def __init__(self, config: pytest.Config, world_size: int) -> None:
        """Set the environment of rank 0, with which this process collects the tests that it goes through."""
        self._world_size, self._gpus = world_size, config.known_args_namespace.ddpsim_gpus
        self._folder = tempfile.mkdtemp(prefix="ddpsim-")
        self._files = [os.path.join(self._folder, f"rank-{rank}") for rank in range(world_size)]
        self._patch, self._refusing = pytest.MonkeyPatch(), ExitStack()
        config.add_cleanup(self._close)  # a session that refuses its options is not unconfigured
        environments = []
        for rank, file in enumerate(self._files):
            suite = {"arguments": list(map(str, config.invocation_params.args)), "gpus": self._gpus, "file": file}
            own = torchrun_variables(RankHost(rank, world_size)) | {rank_session.VARIABLE: json.dumps(suite)}
            environments.append(tuple(own.items()))
        self._program = TestOnRanks(("-m", "pytest"), rank_environments=tuple(environments))
        for name, value in torchrun_variables(RankHost(0, world_size)).items():
            self._patch.setenv(name, value)
        self._patch.syspath_prepend(os.getcwd())  # as under `torchrun -m pytest`
        rank_session.install_virtual_gpus(self._gpus)
        self._refusing.enter_context(groups_refused())

    def _close(self) -> None:
        """Restore the environment, and remove the files."""
        self._refusing.close()
        self._patch.undo()
        shutil.rmtree(self._folder, ignore_errors=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Refuse workers of xdist; its `--dist each` means what `--ddpsim-ranks` does."""
        leave_out_xdist(config)
        if config.getoption("numprocesses", None):
            raise pytest.UsageError("-n was given with --ddpsim-ranks, which runs one test at a time: leave -n out")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Start the servers, which collect the suite at the same time as this process."""
        self._keys = server_keys(self._program, program_seeds(alike=False).hash_seeds, _MODULES)
        STANDING.start_servers(self._keys, wants_dynamo=True)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Wait for the servers, and compare what the ranks have collected."""
        self._refusing.close()
        if session.testsfailed and not session.config.getoption("continue_on_collection_errors"):
            return  # pytest reports the modules that cannot be collected, and ends the session
        try:
            with STANDING.use_servers(self._keys, wants_dynamo=True):
                pass
        except UsageError as error:
            problem = str(error).replace(*_MODULES, "the suite").replace("do not preload it", "start it in a fixture")
            raise pytest.UsageError(problem) from None
        own = {item.nodeid for item in session.items}
        for rank in range(self._world_size):
            collected: Collection = self._read(rank)[0]
            if collected.problem and not session.testsfailed:
                raise pytest.UsageError(f"{collected.problem} on rank {rank}, expected what rank 0 collects")
            is_replay = session.config.getoption("ddpsim_replay")  # this process then runs one test alone
            _compare_collections(own, own.intersection(collected.nodes) if is_replay else set(collected.nodes), rank)

    def run_test(self, attempt: Attempt) -> list[pytest.TestReport]:
        """Run a test on all ranks, and return its reports."""
        item, began = attempt.item, time.perf_counter()
        for file in self._files:
            os.truncate(file, 0)
        try:
            run = self._simulate(attempt)
            restore = partial(item.config.hook.pytest_report_from_serializable, config=item.config)
            by_rank = [[restore(data=data) for data in self._read(rank)] for rank in range(self._world_size)]
        except RanksFailed as error:
            return _failed_reports(item, error, None)
        except Exception as error:  # of ddpsim itself, too: the next test runs
            text = str(error) if isinstance(error, SimulatorError) else traceback.format_exc()
            return _failed_reports(item, RanksFailed(text), None)
        seconds = time.perf_counter() - began
        reports = _merge(item, run, by_rank)
        for report in reports:
            report.duration = seconds if report.when == "call" else 0.0  # that of a rank is of the virtual clock
        return reports

    def _simulate(self, attempt: Attempt) -> RunOfTest:
        item, terms = attempt.item, attempt.terms
        program = replace(self._program, node=item.nodeid)
        options: dict[str, Any] = {
            "name": test_name_in_tokens(item),
            "preload": _MODULES,
            "gpus": self._gpus,
            "budget": Budget(steps=MOST_STEPS, seconds=terms.seconds, polls=terms.polls),
        }
        if terms.token is not None:
            result, failure = replay_test(program, self._world_size, terms.token, options, is_strict=True)
            if failure is not None:
                raise failure
        else:
            result = simulate(program, self._world_size, policy=terms.policy, seed=terms.seed, **options)
        attempt.results.append(result)
        gpus = "" if self._gpus is None else f" --ddpsim-gpus {self._gpus}"
        again = f"{replay_command(item, str(result.schedule))} --ddpsim-ranks {self._world_size}{gpus}"
        run = RunOfTest(result.with_replay(again), RankOutput(item))
        return replace(run, error=failure_of_run(run, None))

    def _read(self, rank: int) -> list[Any]:
        found = []
        with open(self._files[rank], "rb") as file:
            while file.peek(1):
                found.append(pickle.load(file))
        return found


def _compare_collections(own: set[str], others: set[str], rank: int) -> None:
    """Raise pytest.UsageError if a rank has collected other tests than rank 0."""
    if own == others:
        return
    sides = [(sorted(own - others), 0), (sorted(others - own), rank)]
    found = [
        f"{', '.join(nodes[:_MOST_NAMED])}{' ...' * (len(nodes) > _MOST_NAMED)} only on rank {where}"
        for nodes, where in sides
        if nodes
    ]
    raise pytest.UsageError(
        f"ranks 0 and {rank} collect different tests ({'; '.join(found)}), expected the same on every rank: let no "
        "module and no parametrisation depend on the rank"
    )


def _merge(item: pytest.Function, run: RunOfTest, by_rank: Sequence[list[Any]]) -> list[pytest.TestReport]:
    """Return the reports of a test: those of the rank that fails it, or of the rank with the worst outcome."""
    error = run.error
    if error is not None and severity_of_error(error) is Severity.LEAVES:
        raise error
    if error is None:
        incomplete = [rank for rank, each in enumerate(by_rank) if not each or each[-1].when != "teardown"]
        if incomplete:
            text = f"rank {incomplete[0]} ended its process in the test, which has no outcome there, expected a return"
            return _failed_reports(item, RanksFailed(text), None)
        worst = max(range(len(by_rank)), key=lambda rank: (_badness(by_rank[rank]), -rank))
        reports = by_rank[worst]
        if text := "\n\n".join(finding.body for finding in run.result.findings):
            reports[-2].sections.append(("findings", text))
        return reports
    raiser = next((rank for rank, each in run.result.errors.items() if each is error), None)
    reports = [] if raiser is None else by_rank[raiser]
    failed = next((each for each in reports if each.failed), None)
    if failed is not None:
        _add_output(failed, by_rank)
        annotate_report(item, failed, error, run)
    elif not any(hasattr(each, "wasxfail") for each in reports):
        text = error if isinstance(error, RanksFailed) else RanksFailed(str(run.result), run.result.findings[0].summary)
        return _failed_reports(item, text, run, by_rank)
    return reports


def _badness(reports: Sequence[pytest.TestReport]) -> int:
    """Return 2 if a report of a rank failed, 1 if the test ran, and 0 if it was skipped."""
    return 2 if any(each.failed for each in reports) else int(all(each.passed for each in reports))


def _add_output(report: pytest.TestReport, by_rank: Sequence[Sequence[pytest.TestReport]]) -> None:
    """Replace the captured output in a report by that of all ranks."""
    report.sections = [
        (f"{title}, rank {rank}", text)
        for rank, reports in enumerate(by_rank)
        for title, text in (reports[-1].sections if reports else ())
    ]


def _failed_reports(
    item: pytest.Function, error: RanksFailed, run: RunOfTest | None, by_rank: Sequence[Any] = ()
) -> list[pytest.TestReport]:
    """Return the reports of a test that fails without an exception of its own, such as a deadlock."""

    def fail() -> NoReturn:
        raise error

    item.stash[xfailed_key] = evaluate_xfail_marks(item)
    item.stash[OPTIONS_KEY] = MarkerOptions(1)  # so that it is reported as a marked test is
    if run is not None:
        item.stash[RUN] = run
    calls = [pytest.CallInfo.from_call(lambda: None, "setup"), pytest.CallInfo.from_call(fail, "call")]
    reports = [item.ihook.pytest_runtest_makereport(item=item, call=call) for call in calls]
    del item.stash[OPTIONS_KEY]
    _add_output(reports[-1], by_rank)
    call = pytest.CallInfo.from_call(lambda: None, "teardown")
    return [*reports, item.ihook.pytest_runtest_makereport(item=item, call=call)]
