"""The pytest plugin of `--ddpsim`: attempts each test until its outcome is known, and reports the suite.

A test whose ranks may be threads runs so first. If it fails, or its ranks change what processes would not share, it
runs again with ranks as processes, and that outcome counts. The later tests of its class then begin with processes.
"""

import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from ddpsim import Policy, Verdict
from ddpsim.scenarios.pytest_plugin.failure import RunOfTest
from ddpsim.scenarios.pytest_plugin.fixtures import IS_FURTHER_ATTEMPT, OPTIONS_KEY
from ddpsim.scenarios.pytest_plugin.marker import default_time_limit
from ddpsim.scenarios.pytest_plugin.rank_output import RankOutput
from ddpsim.scenarios.test_suites import torch_bases
from ddpsim.scenarios.test_suites.commands import CommandsOfTest
from ddpsim.scenarios.test_suites.outside import OutsideProcesses
from ddpsim.scenarios.test_suites.per_rank import NAME, SuiteOnRanks
from ddpsim.scenarios.test_suites.pools import adapt_pools
from ddpsim.scenarios.test_suites.processes import ProcessesOfTest
from ddpsim.scenarios.test_suites.ranks_of_test import Attempt, RanksOfTest, RanksRaisedError, Terms
from ddpsim.scenarios.test_suites.schedules import Attempted, ScheduleSearch
from ddpsim.scenarios.test_suites.summary import (
    NO_TOKEN,
    SuiteTest,
    annotations,
    suite_test_of_report,
    summary_lines,
    write_sarif,
)
from ddpsim.simulator.errors import make_internal_error
from ddpsim.simulator.policies.named import DEFAULT_DRAWING
from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.verdict import format_replay_line

_HAZARDS_ONLY = 6
"""The exit status with `--ddpsim-strict` if all tests pass, and some have hazards; pytest itself uses 0 to 5."""

_FEWER_POLLS = 5_000
"""The limit of polls for further attempts at a test in which ranks have polled for ever: each has to show it again."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin of this session."""
    config.pluginmanager.register(SuitePlugin(config))


class SuitePlugin:
    """Runs the tests of a session that start ranks."""

    def __init__(self, config: pytest.Config) -> None:
        self._ranks = RanksOfTest()
        self._replaced = ReplacedAttributes()
        self._on_ranks: SuiteOnRanks | None = config.pluginmanager.get_plugin(NAME)
        needs_processes = self._on_ranks is not None or config.getoption("ddpsim_gpus") is not None
        self._forced: str | None = "process" if needs_processes else config.getoption("ddpsim_isolation")
        self._why_processes: dict[str, str] = {}
        """By the node id of a class or module: why one of its tests has needed ranks as processes."""
        self._tests: list[SuiteTest] = []
        self._threads: list[threading.Thread] = []
        terms = Terms(seconds=default_time_limit(config), token=config.getoption("ddpsim_replay"))
        seed = config.getoption("ddpsim_seed")
        policy = config.getoption("ddpsim_policy") or (terms.policy if seed is None else DEFAULT_DRAWING)
        self._terms = replace(terms, policy=policy, seed=seed or 0)
        self._schedules: int = config.getoption("ddpsim_explore") or 0
        self._outside = OutsideProcesses(self._ranks, self._replaced)
        self._processes = ProcessesOfTest(self._ranks, self._replaced, self._outside)
        CommandsOfTest(self._ranks, self._replaced, self._outside)
        adapt_pools(self._ranks, self._replaced)
        self._watch = torch_bases.adapt_when_imported(self._ranks, self._replaced)

    def pytest_unconfigure(self) -> None:
        """Restore what was replaced."""
        self._watch.uninstall()
        self._replaced.restore_attributes()
        self._outside.close()

    # --- one test -----------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Attempt a test until its outcome is known, and report the attempt that counts."""
        if OPTIONS_KEY in item.stash or not isinstance(item, pytest.Function):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._attempt_until_known(item, nextitem).reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _attempt_until_known(self, item: pytest.Function, nextitem: pytest.Item | None) -> Attempted:
        scope = item.parent.nodeid if item.parent else ""
        properties = list(item.user_properties)
        polls = self._terms.polls

        def attempt(terms: Terms) -> Attempted:
            nonlocal polls
            attempted = attempt_once(replace(terms, polls=polls))
            if _was_cut(attempted):
                polls = _FEWER_POLLS
            return attempted

        def attempt_once(terms: Terms) -> Attempted:
            if OPTIONS_KEY in item.stash:  # a further attempt
                del item.stash[OPTIONS_KEY]
                item.stash[IS_FURTHER_ATTEMPT] = True
                item._initrequest()
            item.user_properties[:] = properties
            if self._on_ranks is not None:
                own = Attempt(item, terms)
                return Attempted(own, self._on_ranks.run_test(own))
            self._ranks.attempt = own = Attempt(item, terms)
            try:
                attempted = Attempted(own, runtestprotocol(item, log=False, nextitem=nextitem))
                own.has_failed |= attempted.outcome == "failed"
                return attempted
            finally:
                self._processes.close()
                self._ranks.attempt = None
                if left := [each.name for each in self._threads if each.is_alive()]:
                    item.warn(pytest.PytestWarning(f"the test has left threads that still run: {', '.join(left)}"))
                self._threads.clear()

        first = "process" if scope in self._why_processes else "thread"
        found = on_threads = attempt(replace(self._terms, isolation=self._forced or first))
        why = found.attempt.why_processes
        if why and self._forced is None:
            found = attempt(replace(self._terms, isolation="process"))
            if on_threads.attempt.changed or found.outcome != on_threads.outcome:
                self._why_processes[scope] = why
            is_same = _message(found) == _message(on_threads) or (_was_cut(found) and _was_cut(on_threads))
            if found.outcome == on_threads.outcome == "failed" and is_same:
                found = on_threads  # it has the tracebacks
        row = found.attempt.row(self._why_processes.get(scope, why))
        if self._schedules and found.attempt.results:
            terms = found.attempt.terms

            def attempt_under(policy: Policy) -> Attempted:
                return attempt(replace(terms, policy=policy))

            search = ScheduleSearch(found, attempt_under)
            try:
                search.search(self._schedules, terms.seconds, terms.seed)
            except pytest.exit.Exception:
                raise
            except Exception as error:  # the next test runs
                item.warn(pytest.PytestWarning(str(make_internal_error(error, "the exploration of the test"))))
            row = replace(row, schedules=search.text())
            if search.has_both:
                found = search.by_outcome["failed"]
                token = str(found.attempt.results[0].schedule) if search.is_repeatable else NO_TOKEN
                row = replace(found.attempt.row(row.why), schedules=row.schedules, flaky=token)
                if item.config.getoption("ddpsim_report") is not None:
                    _rewrite_report(item, found, has_token=search.is_repeatable)
        for report in found.reports:
            if found.attempt.results:
                report.user_properties += row.properties()
                if row.flaky == NO_TOKEN and hasattr(report.longrepr, "addsection"):
                    _drop_replay_line(report.longrepr)
                if row.schedules and report.failed:
                    report.sections.append(("ddpsim: under other schedules", row.schedules))
        return found

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, object, object]:
        """Report the error of a rank, and not the error that its harness makes of it."""
        of_unittest: list[Any] = getattr(item, "_excinfo", None) or []  # pytest takes these first
        of_unittest[:] = map(_error_of_rank, of_unittest)
        if call.excinfo is not None:
            call.excinfo = _error_of_rank(call.excinfo)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Fail a test for what its processes have done, whether or not it has waited for them."""
        __tracebackhide__ = True
        before = threading.enumerate()
        try:
            yield
        except BaseException:
            self._outside.fail_if_reported()  # this explains it
            raise
        finally:
            self._threads = [each for each in threading.enumerate() if each not in before and not each.daemon]
        self._outside.fail_if_reported()
        if line := self._processes.run_left_ranks():
            item.warn(pytest.PytestWarning(line))

    # --- the suite ----------------------------------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that has started ranks."""
        if report.when == "call":
            test = suite_test_of_report(report.nodeid, report.outcome, report.duration, report.user_properties)
            self._tests += [] if test is None else [test]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Set the exit status of a session whose tests pass with hazards, if the user has asked for one."""
        if session.config.getoption("ddpsim_strict") and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = _HAZARDS_ONLY if any(each.row.hazards for each in self._tests) else session.exitstatus

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Print the suite's summary, and write what was asked for."""
        for line in self._lines(config):
            terminalreporter.write_line(line)

    def _lines(self, config: pytest.Config) -> Iterator[str]:
        if self._tests:
            yield from summary_lines(self._tests, is_verbose=config.option.verbose > 0)
        if config.getoption("ddpsim_annotations"):
            yield from annotations(self._tests)
        if path := config.getoption("ddpsim_sarif"):
            yield write_sarif(Path(path), self._tests, metadata.version("ddpsim"))


def _error_of_rank(found: pytest.ExceptionInfo[BaseException]) -> pytest.ExceptionInfo[BaseException]:
    cause = found.value.__cause__ if isinstance(found.value, RanksRaisedError) else None
    if cause is None:
        return found
    at = cause.__traceback__ or found.value.__traceback__  # the error of a process has none
    return pytest.ExceptionInfo.from_exception(cause.with_traceback(at))


def _drop_replay_line(shown: Any) -> None:
    """Remove the replay line from what a failed report shows: the schedule alone does not decide."""
    start = format_replay_line("")
    for entry in shown.reprtraceback.reprentries:
        entry.lines[:] = [line for line in entry.lines if not line.startswith(start)]
    shown.sections[:] = [(title, text.partition(start)[0].rstrip(), line) for title, text, line in shown.sections]


def _rewrite_report(item: pytest.Function, found: Attempted, *, has_token: bool) -> None:
    """Write the report again about the attempt that counts, if that is not the last; without a token if it has none."""
    from ddpsim.scenarios.pytest_plugin.failure_reports import rewrite_report

    result = found.attempt.results[0]
    shown = result if has_token else result.with_replay("")
    for report in found.reports:
        if report.failed and report.when == "call" and result.verdict is not Verdict.PASS:
            rewrite_report(item, report, RunOfTest(shown, RankOutput(item)))


def _was_cut(found: Attempted) -> bool:
    """Return whether a run has reached a limit."""
    return any(each.verdict is Verdict.UNKNOWN for each in found.attempt.results)


def _message(found: Attempted) -> str:
    """Return what a failed attempt says, without the name of the rank that was first."""
    shown = (getattr(report.longrepr, "reprcrash", None) for report in found.reports if report.failed)
    return next((crash.message.partition(": ")[2] for crash in shown if crash is not None), "")
