"""pytest plugin: tests that run on every rank (`@pytest.mark.ranks(4)`), and scenario files as tests.

This package holds no scenarios. It is in scenarios/ because it runs scenario files and shares the way they are run.

Every session of pytest loads this, so it imports next to nothing: torch and the simulator come when a marked test runs.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddpsim.scenarios.names import shadow
from ddpsim.scenarios.pytest_plugin.collecting import add_seeds, make_unusable, marked, prepare, set_aside
from ddpsim.scenarios.pytest_plugin.fixtures import OPTIONS_KEY, ddpsim_seed, rank, refuse_outside, world_size
from ddpsim.scenarios.pytest_plugin.marker import DESCRIPTION, SECONDS, SECONDS_INI, seconds_of
from ddpsim.scenarios.pytest_plugin.scenario_files import collect_file
from ddpsim.simulator.policies.named import DRAWING, RUNNING, draws, listed

if TYPE_CHECKING:
    from ddpsim.scenarios.pytest_plugin.failure import Run

__all__ = ["ddpsim_seed", "rank", "world_size"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the command line."""
    group = parser.getgroup("ddpsim", "tests on simulated ranks (ddpsim)")
    group.addoption(
        "--ddpsim-policy",
        choices=RUNNING,
        help="the policy of all tests marked ranks that run once, whatever their markers say",
    )
    group.addoption(
        "--ddpsim-seed", type=int, metavar="N", help="the seed of all tests marked ranks; policy random unless given"
    )
    group.addoption(
        "--ddpsim-replay", metavar="TOKEN", help="run the test that a replay token belongs to under its schedule"
    )
    parser.addini(
        SECONDS_INI, "seconds that the run of a test marked ranks may take, unless its marker says", default=SECONDS
    )
    group.addoption(
        "--ddpsim-report", metavar="DIR", help="write a report of each failing test marked ranks into a folder in DIR"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker. Refuse options of no use before anything runs."""
    config.addinivalue_line("markers", DESCRIPTION)
    if hasattr(config, "workerinput"):  # a worker of xdist: the session that started it has looked
        return
    seconds_of(config)
    token, folder = config.getoption("ddpsim_replay"), config.getoption("ddpsim_report")
    policy = config.getoption("ddpsim_policy")
    if policy is not None and not draws(policy) and config.getoption("ddpsim_seed") is not None:
        raise pytest.UsageError(
            f"--ddpsim-seed is given, but --ddpsim-policy {policy} draws nothing, expected {listed(DRAWING)}: "
            "leave one of them out"
        )
    if (token is not None or folder is not None) and (line := shadow()):
        raise pytest.UsageError(line)
    if token is not None:
        from ddpsim.scenarios.pytest_plugin.replaying import check_token

        check_token(token)
    if folder is not None:
        from ddpsim.scenarios.pytest_plugin.reporting import prepare_folder

        prepare_folder(config, folder)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Scenario files."""
    return collect_file(file_path, parent)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> pytest.Item | None:
    """What the marker cannot stand on."""
    return make_unusable(collector, name, obj)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests with `seeds=`."""
    add_seeds(metafunc, metafunc.config.getoption("ddpsim_seed"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the marked tests; choose those that a replay token belongs to."""
    prepare(items)
    if any(marked(items)) and (line := shadow()):  # what their folders hold can be imported by now
        if not hasattr(config, "workerinput"):
            raise pytest.UsageError(line)
        set_aside(items, line)  # xdist takes a worker that ends before its tests for one that has crashed
    token = config.getoption("ddpsim_replay")
    if token is not None:
        from ddpsim.scenarios.pytest_plugin.replaying import keep_replayed

        keep_replayed(config, items, token)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """What only ranks make is not made here."""
    __tracebackhide__ = True
    refuse_outside(request, fixturedef)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Prepare a marked test with `@given`, before hypothesis' own plugin looks at it."""
    __tracebackhide__ = True
    is_drawn = OPTIONS_KEY in item.stash and "hypothesis" in sys.modules
    if not (is_drawn and isinstance(item, pytest.Function) and getattr(item.obj, "is_hypothesis_test", False)):
        return (yield)
    from ddpsim.scenarios.pytest_plugin.drawn import fit_for_ranks

    with fit_for_ranks(item):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on its ranks."""
    __tracebackhide__ = True
    if OPTIONS_KEY not in pyfuncitem.stash:
        return None
    from ddpsim.scenarios.pytest_plugin.running import run_test

    run_test(pyfuncitem)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in the report of a failing test which rank it was, and how to see it again."""
    if OPTIONS_KEY in item.stash and call.when == "teardown":
        report = yield
        _write_owed(item, report)
        return report
    if OPTIONS_KEY not in item.stash or call.when != "call":
        return (yield)
    from ddpsim.scenarios.pytest_plugin.failure import annotate, prepare_group
    from ddpsim.scenarios.pytest_plugin.running import add_sections, failed_run_of, forget

    add_sections(item)
    run = failed_run_of(item)
    if run is not None and call.excinfo and call.excinfo.value is not run.error:
        prepare_group(call.excinfo.value)
    report = yield
    if report.failed:
        location = _owe_report(item, report, run)
        annotate(item, report, call.excinfo and call.excinfo.value, run, location=location)
    forget(item)
    return report


def _owe_report(item: pytest.Item, report: pytest.TestReport, run: Run | None) -> Sequence[str]:
    if item.config.getoption("ddpsim_report") is None or run is None:
        return ()
    from ddpsim.scenarios.pytest_plugin.reporting import owe_report

    return (owe_report(item, report, run),)


def _write_owed(item: pytest.Item, report: pytest.TestReport) -> None:
    if item.config.getoption("ddpsim_report") is not None:
        from ddpsim.scenarios.pytest_plugin.reporting import write_owed

        write_owed(item, report)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    """Say where the reports are, and if it is not one test that was replayed."""
    token, folder = config.getoption("ddpsim_replay"), config.getoption("ddpsim_report")
    if token is not None:
        from ddpsim.scenarios.pytest_plugin.replaying import replay_summary

        line = replay_summary(config, exitstatus, token)
        if line is not None:
            terminalreporter.write_line(line)
    if folder is not None:
        from ddpsim.scenarios.pytest_plugin.reports_page import write_page

        terminalreporter.write_line(write_page(terminalreporter, folder))
