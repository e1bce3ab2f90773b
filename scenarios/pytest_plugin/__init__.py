"""pytest plugin: tests that run on every rank (`@pytest.mark.ranks(4)`), and scenario files as tests.

Every pytest session loads this module, so it imports little: torch and the simulator are imported by marked tests.
"""

import importlib
import os
import sys
from collections.abc import Generator

import pytest

from ddpsim.scenarios.names import describe_shadowing_file
from ddpsim.scenarios.pytest_plugin.collecting import (
    fail_all_marked_tests,
    marked_tests,
    prepare_marked_tests,
    pytest_generate_tests,
    pytest_pycollect_makeitem,
)
from ddpsim.scenarios.pytest_plugin.fixtures import (
    IS_FURTHER_ATTEMPT,
    OPTIONS_KEY,
    ddpsim_seed,
    pytest_fixture_setup,
    rank,
    world_size,
)
from ddpsim.scenarios.pytest_plugin.marker import DESCRIPTION, SECONDS, SECONDS_INI, default_time_limit
from ddpsim.scenarios.pytest_plugin.programs import CHECKS, check_programs
from ddpsim.scenarios.pytest_plugin.scenario_files import pytest_collect_file
from ddpsim.simulator.policies.named import DRAWING, RUNNING, join_names, uses_seed

_FIXTURES = (ddpsim_seed, rank, world_size)
_HOOKS = (pytest_collect_file, pytest_fixture_setup, pytest_generate_tests, pytest_pycollect_makeitem)
"""The fixtures and hooks that other modules define; pytest finds them here by their names."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's command line options and its ini option."""
    group = parser.getgroup("ddpsim", "tests on simulated ranks (ddpsim)")
    group.addoption(
        "--ddpsim-policy",
        choices=RUNNING,
        help="scheduling policy of all tests marked `ranks` that run once; overrides their markers",
    )
    group.addoption(
        "--ddpsim-seed", type=int, metavar="N", help="random seed of all tests marked `ranks`; without a policy, random"
    )
    group.addoption(
        "--ddpsim-replay",
        metavar="TOKEN",
        help="run only the test that the replay token was recorded for, with its schedule",
    )
    parser.addini(SECONDS_INI, "time limit in seconds of tests marked `ranks` whose marker has none", default=SECONDS)
    group.addoption(
        "--ddpsim",
        action="store_true",
        help="simulate the ranks that tests start by torch's test classes, multiprocessing or torchrun",
    )
    suite = parser.getgroup("ddpsim-suite", "with --ddpsim")
    suite.addoption(
        "--ddpsim-isolation",
        choices=("thread", "process"),
        help="what each rank of a test is; by default a thread, and then a process where that may differ",
    )
    suite.addoption(
        "--ddpsim-explore",
        type=int,
        metavar="N",
        help="run each test under up to N more schedules; a test whose outcome depends on them fails as flaky",
    )
    suite.addoption("--ddpsim-strict", action="store_true", help="exit with status 6 if tests pass with hazards")
    suite.addoption("--ddpsim-annotations", action="store_true", help="print the findings as GitHub's annotations")
    suite.addoption("--ddpsim-sarif", metavar="FILE", help="write the findings into a SARIF file")
    group.addoption(
        "--ddpsim-ranks", type=int, metavar="N", help="run each test on N simulated ranks, as torchrun runs pytest"
    )
    group.addoption(
        "--ddpsim-gpus",
        type=int,
        metavar="N",
        help="with --ddpsim or --ddpsim-ranks: the number of virtual GPUs; ranks are processes then",
    )
    group.addoption(
        "--ddpsim-report", metavar="DIR", help="write a report of each failing test marked `ranks` into a folder in DIR"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Prepare a session whose tests run on every rank; files such as conftest.py may read the rank when imported."""
    given = early_config.known_args_namespace
    ranks = given.ddpsim_ranks
    if "DDPSIM_SUITE" in os.environ:  # that is set in the session of each rank
        return
    if ranks is None:
        if given.ddpsim and given.ddpsim_gpus is not None:
            importlib.import_module("ddpsim.scenarios.test_suites.rank_session").install_virtual_gpus(given.ddpsim_gpus)
        return
    per_rank = importlib.import_module("ddpsim.scenarios.test_suites.per_rank")  # it stands above this package
    early_config.pluginmanager.register(per_rank.SuiteOnRanks(early_config, ranks), per_rank.NAME)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse wrong options before anything runs."""
    for description in (DESCRIPTION, *CHECKS):
        config.addinivalue_line("markers", description)
    if config.getoption("ddpsim") or config.getoption("ddpsim_ranks"):
        config.pluginmanager.import_plugin("ddpsim.scenarios.test_suites.plugin")
    if hasattr(config, "workerinput"):  # a worker of xdist: its parent session has checked the options
        return
    default_time_limit(config)
    token, folder = config.getoption("ddpsim_replay"), config.getoption("ddpsim_report")
    policy = config.getoption("ddpsim_policy")
    if policy is not None and not uses_seed(policy) and config.getoption("ddpsim_seed") is not None:
        raise pytest.UsageError(
            f"--ddpsim-seed is given, but --ddpsim-policy {policy} uses no seed, expected {join_names(DRAWING)}: "
            "leave one of them out"
        )
    if (token is not None or folder is not None) and (line := describe_shadowing_file()):
        raise pytest.UsageError(line)
    if token is not None:
        from ddpsim.scenarios.pytest_plugin.token_replay import check_replay_token

        check_replay_token(token)
    if folder is not None:
        from ddpsim.scenarios.pytest_plugin.failure_reports import prepare_folder

        prepare_folder(config, folder)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the marked tests. If a replay token is given, keep only the test of this token."""
    prepare_marked_tests(items)
    # Checked again: pytest has put the tests' folders on sys.path.
    if any(marked_tests(items)) and (line := describe_shadowing_file()):
        if not hasattr(config, "workerinput"):
            raise pytest.UsageError(line)
        fail_all_marked_tests(items, line)  # xdist would treat a worker that ends early as crashed
    token = config.getoption("ddpsim_replay")
    if token is not None:
        from ddpsim.scenarios.pytest_plugin.token_replay import keep_tests_of_token

        keep_tests_of_token(config, items, token)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Adapt the settings of a test with `@given` before hypothesis' own plugin reads them: hypothesis would refuse a
    marked test, which runs on ranks, and a further attempt at a test of a suite, with a new object of its class."""
    __tracebackhide__ = True
    is_drawn = (OPTIONS_KEY in item.stash or IS_FURTHER_ATTEMPT in item.stash) and "hypothesis" in sys.modules
    if not (is_drawn and isinstance(item, pytest.Function) and getattr(item.obj, "is_hypothesis_test", False)):
        return (yield)
    from ddpsim.scenarios.pytest_plugin.hypothesis_runs import adapted_hypothesis_settings

    with adapted_hypothesis_settings(item):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Check what markers `crashes` and `compares` name, and run a test marked `ranks` on its ranks. Leave other tests
    to pytest."""
    __tracebackhide__ = True
    check_programs(pyfuncitem)
    if OPTIONS_KEY not in pyfuncitem.stash:
        return None
    from ddpsim.scenarios.pytest_plugin.running import run_marked_test

    run_marked_test(pyfuncitem)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failing test which rank failed, and the command that replays the run."""
    if OPTIONS_KEY in item.stash and call.when == "teardown":
        report = yield
        if item.config.getoption("ddpsim_report") is not None:
            from ddpsim.scenarios.pytest_plugin.failure_reports import write_stored_report

            write_stored_report(item, report)
        return report
    if OPTIONS_KEY not in item.stash or call.when != "call":
        return (yield)
    from ddpsim.scenarios.pytest_plugin.failure import annotate_group, annotate_report
    from ddpsim.scenarios.pytest_plugin.running import add_report_sections, drop_stored_run, failed_run_of

    add_report_sections(item)
    run = failed_run_of(item)
    if run is not None and call.excinfo and call.excinfo.value is not run.error:
        annotate_group(call.excinfo.value)
    report = yield
    if report.failed:
        location = []
        if run is not None and item.config.getoption("ddpsim_report") is not None:
            from ddpsim.scenarios.pytest_plugin.failure_reports import store_failure

            location = [store_failure(item, report, run)]
        annotate_report(item, report, call.excinfo and call.excinfo.value, run, location=location)
    drop_stored_run(item)
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    """Print the folder of the reports, and a warning if a replay token did not match exactly one test."""
    token, folder = config.getoption("ddpsim_replay"), config.getoption("ddpsim_report")
    if token is not None:
        from ddpsim.scenarios.pytest_plugin.token_replay import token_warning

        line = token_warning(config, exitstatus, token)
        if line is not None:
            terminalreporter.write_line(line)
    if folder is not None:
        from ddpsim.scenarios.pytest_plugin.failure_reports import write_index_of_session

        terminalreporter.write_line(write_index_of_session(terminalreporter, folder))
