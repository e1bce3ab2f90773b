"""What the tests of the plugin share: test files, written and run by pytest's own pytester.

Most sessions run in this process. pytester makes Python forget what such a session imports, and torch can be imported
only once; so all that the sessions use is imported, and used, before the first of them.
"""

import signal
import threading
import warnings
from importlib import import_module
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import ddpsim.scenarios.cli.judgement
import ddpsim.scenarios.files.loader
import ddpsim.scenarios.pytest_plugin.failure_reports
import ddpsim.scenarios.pytest_plugin.hypothesis_runs  # noqa: F401
from ddpsim import Verdict, explore
from ddpsim.scenarios import registry, run_scenario
from tests.pytest_plugin.reading import Failure

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "ddpsim.scenarios.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers", "--color=no")
HEAD = """\
import pytest, torch
import torch.distributed as dist
from ddpsim.scenarios import per_rank

"""


@pytest.fixture(scope="session")
def everything_is_imported():
    """What Python and torch import when it is first needed."""

    @hypothesis.settings(database=None, max_examples=2)
    @hypothesis.given(st.integers(), st.data())
    def draws(number, data):
        data.draw(st.booleans())

    draws()
    import_module("torch._dynamo")  # by the oracle's optimizers; the simulated ones put it off
    assert explore(lambda rank: torch.distributed.barrier(), 2).complete
    for engine in ("torch", "ddp"):
        assert run_scenario(registry["uneven-inputs"], engine=engine).verdict is Verdict.PASS


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch):
    """The sessions load what they are told to, and print the same on every machine."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No thread of a rank outlives its session, and what pdb does about Ctrl-C ends with it."""
    on_interrupt, before = signal.getsignal(signal.SIGINT), set(threading.enumerate())  # other tests leave ranks behind
    yield
    signal.signal(signal.SIGINT, on_interrupt)
    for thread in threading.enumerate():
        if thread.name.startswith("ddpsim") and thread not in before:
            thread.join(timeout=10)
            assert not thread.is_alive(), thread


@pytest.fixture
def run(pytester, everything_is_imported):
    """Write a test file, if a source is given, and run pytest on it in this process."""

    def run_pytest(source, *arguments):
        if source:
            pytester.makepyfile(test_it=HEAD + source)
        with warnings.catch_warnings():
            warnings.resetwarnings()  # to us they are errors
            return pytester.runpytest_inprocess(*PLUGIN, *arguments)

    return run_pytest


@pytest.fixture
def fails(run):
    """The same for a session in which one test fails, and so many others come to something else: its failure."""

    def fails(source, *arguments, **others):
        result = run(source, *arguments)
        result.assert_outcomes(failed=1, **others)
        return Failure(result)

    return fails


@pytest.fixture
def run_apart(pytester):
    """The same in a process of its own."""

    def run_pytest(source, *arguments):
        if source:
            pytester.makepyfile(test_it=HEAD + source)
        return pytester.runpytest_subprocess(*PLUGIN, *arguments)

    return run_pytest
