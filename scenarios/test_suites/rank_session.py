"""Runs in the servers of `--ddpsim-ranks`: its import collects the suite with the environment of one rank.

Ranks are forked from these servers, each with the collected tests of its own. A rank runs the whole protocol of one
test, with new fixtures of all scopes, and writes its reports into a file that the main process reads.
"""

import json
import os
import pickle
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist
from _pytest.config import _prepareconfig
from torch.distributed import distributed_c10d

from ddpsim.simulator.hosts import RankHost, torchrun_variables
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.runtime.call_sites import begin_program
from ddpsim.simulator.runtime.rank_thread import RankUnwound
from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.virtual_gpus.announcement import FirstUseAnnouncement
from ddpsim.simulator.virtual_gpus.install import VirtualGpus

VARIABLE = "DDPSIM_SUITE"
"""The environment variable of a server: the arguments of `RankSession` in JSON."""


@dataclass(frozen=True, slots=True)
class TestOnRanks(Script):
    """A test of the collected suite, as the program of ranks."""

    __test__ = False
    node: str = ""

    def __call__(self, rank: int) -> None:
        """Run the test in the process of its rank."""
        __tracebackhide__ = True
        _COLLECTED[0].run_test(self.node)


@dataclass(frozen=True, slots=True)
class Collection:
    """What one rank has collected."""

    nodes: tuple[str, ...] = ()
    problem: str = ""
    """Why the rank could not collect all tests; "" if it could."""


class RankSession:
    """The pytest session of one rank, which has collected the suite. It is also a plugin of that session."""

    def __init__(self, arguments: list[str], gpus: int | None, file: str) -> None:
        self._file = open(file, "ab", buffering=0)  # noqa: SIM115
        self._error: BaseException | None = None
        self._tests: dict[str, pytest.Item] = {}
        self._problems: list[str] = []
        try:
            install_virtual_gpus(gpus)
            self._nowhere = open(os.devnull, "w")  # noqa: SIM115
            with redirect_stdout(self._nowhere), groups_refused():
                self._collect(arguments)
        except BaseException as error:
            self._problems.append(f"{type(error).__name__}: {error}".partition("\n")[0])
        self._write(Collection(tuple(self._tests), "; ".join(self._problems[:1])))

    def _collect(self, arguments: list[str]) -> None:
        self._config = config = _prepareconfig(arguments, [self])
        options = config.option
        options.ddpsim_ranks = options.ddpsim_replay = None
        options.usepdb = options.trace = False
        config.pluginmanager.set_blocked("rerunfailures")  # it talks to other processes of pytest
        config.addinivalue_line("markers", "flaky: of pytest-rerunfailures")
        self._is_worker = leave_out_xdist(config)
        if self._is_worker:
            number, count = os.environ["RANK"], os.environ["WORLD_SIZE"]
            vars(config)["workerinput"] = {"workerid": f"gw{number}", "workercount": int(count)}
            _leave_torchrun()
        self._capture: Any = config.pluginmanager.getplugin("capturemanager")
        try:
            config._do_configure()
            session = pytest.Session.from_config(config)
            config.hook.pytest_sessionstart(session=session)
            config.hook.pytest_collection(session=session)
        finally:
            self._capture.stop_global_capturing()
        for value in vars(config).values():
            if isinstance(value, pytest.TempPathFactory):
                value.getbasetemp()  # one folder for all tests of the rank
        session.testsfailed, session.shouldfail = 0, False
        self._tests = {item.nodeid: item for item in session.items}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that cannot be collected."""
        if report.failed:
            last = str(report.longrepr).strip().rpartition("\n")[2]
            self._problems.append(f"{report.nodeid} cannot be collected ({last.removeprefix('E ').strip()})")

    def run_test(self, node: str) -> None:
        """Run a test, in the process of a rank. Raises what the test raised."""
        __tracebackhide__ = True
        item = self._tests[node]
        begin_program(str(item.path), 1)
        if self._is_worker:
            _leave_torchrun()
        self._capture.start_global_capturing()
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        finally:
            self._capture.stop_global_capturing()
        if self._error is not None:
            raise self._error

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the first exception of the test, which the rank raises at the end."""
        error = None if call.excinfo is None else call.excinfo.value
        if isinstance(error, RankUnwound):  # the run is over
            raise error
        report = yield
        error = None if call.excinfo is None else call.excinfo.value  # a skip of unittest is one of pytest now
        is_raised = (report.failed or hasattr(report, "wasxfail")) and not isinstance(error, pytest.xfail.Exception)
        if self._error is None and is_raised:
            self._error = error
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report to the main process."""
        self._write(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def _write(self, value: Any) -> None:
        self._file.write(pickle.dumps(value))


def leave_out_xdist(config: Any) -> bool:
    """Let xdist start no workers; return whether each of them would have run all tests (`--dist each`)."""
    options = vars(config.option)
    is_each: bool = options.get("dist") == "each"
    if "dist" in options:
        options.update(dist="no", tx=[])
    return is_each


def _leave_torchrun() -> None:
    """Remove torchrun's environment variables, but the world size, which suites for `--dist each` read."""
    for name in torchrun_variables(RankHost(0, 1)).keys() - {"WORLD_SIZE", "OMP_NUM_THREADS"}:
        os.environ.pop(name, None)


def install_virtual_gpus(count: int | None) -> None:
    """Give this process virtual GPUs before it imports the suite, whose modules may ask for GPUs."""
    if count is not None:
        VirtualGpus(FirstUseAnnouncement()).install(count)


@contextmanager
def groups_refused() -> Iterator[None]:
    """In the `with` block: refuse process groups, as the ranks of a test are not there yet."""
    replaced = ReplacedAttributes()
    for owner in (dist, distributed_c10d):
        replaced.replace_attribute(owner, "init_process_group", partial(_refusing, replaced, owner))
    try:
        yield
    finally:
        replaced.restore_attributes()


def _refusing(replaced: ReplacedAttributes, owner: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        if not replaced:  # a module has imported this function by its name
            return owner.init_process_group(*arguments, **options)
        raise pytest.UsageError(
            "a process group is made while tests are collected, expected in a test or a fixture, as each test has "
            "ranks of its own: make it there"
        )

    return init_process_group


_COLLECTED = [RankSession(**json.loads(os.environ[VARIABLE]))] if VARIABLE in os.environ else []
"""The session of this process, if it is a server."""
