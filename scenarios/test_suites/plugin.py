"""The pytest plugin of `--ddpsim`: attempts each test until its outcome is known, and reports the suite.

A test whose ranks may be threads runs so first. If it fails, or its ranks change what processes would not share, it
runs again with ranks as processes, and that outcome counts. The later tests of its class then begin with processes.
"""

import importlib
from contextlib import suppress
from dataclasses import replace

import pytest
from _pytest.runner import runtestprotocol

from ddpsim.scenarios.pytest_plugin.fixtures import OPTIONS_KEY
from ddpsim.scenarios.pytest_plugin.marker import default_time_limit
from ddpsim.scenarios.test_suites import torch_bases
from ddpsim.scenarios.test_suites.ranks_of_test import Attempt, RanksOfTest, Terms
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_ISOLATIONS = ("thread", "process")


class SuitePlugin:
    """Runs the tests of a session that start ranks."""

    def __init__(self, config: pytest.Config) -> None:
        self._ranks = RanksOfTest()
        self._replaced = ReplacedAttributes()
        self._forced: str | None = config.getoption("ddpsim_isolation")
        self._needs_processes: set[str] = set()
        """The node ids of the classes and modules in which a test has needed ranks as processes."""
        terms = Terms(seconds=default_time_limit(config), token=config.getoption("ddpsim_replay"))
        seed = config.getoption("ddpsim_seed")
        policy = config.getoption("ddpsim_policy") or (terms.policy if seed is None else "random")
        self._terms = replace(terms, policy=policy, seed=seed or 0)
        with suppress(ImportError):  # without expecttest, for instance, no test can use these classes either
            torch_bases.adapt(importlib.import_module(torch_bases.MODULE), self._ranks, self._replaced)

    def pytest_unconfigure(self) -> None:
        """Restore what was replaced."""
        self._replaced.restore_attributes()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Attempt a test until its outcome is known, and report the last attempt."""
        if OPTIONS_KEY in item.stash or not isinstance(item, pytest.Function):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports(self, item: pytest.Function, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        scope = item.parent.nodeid if item.parent else ""
        first = "process" if scope in self._needs_processes else "thread"
        isolations = [self._forced] if self._forced else _ISOLATIONS[_ISOLATIONS.index(first) :]
        properties = list(item.user_properties)
        reports: list[pytest.TestReport] = []
        for isolation in isolations:
            if reports:
                item._initrequest()
                item.user_properties[:] = properties
                del item.stash[OPTIONS_KEY]
                self._needs_processes.add(scope)
            self._ranks.attempt = attempt = Attempt(item, replace(self._terms, isolation=isolation))
            try:
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
            finally:
                self._ranks.attempt = None
            if not attempt.may_need_processes:
                break
        return reports
