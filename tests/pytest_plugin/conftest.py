"""What the tests of the plugin share: test files written and run by pytest's own pytester, in this process."""

import pytest


@pytest.fixture(autouse=True)
def only_our_plugin(monkeypatch):
    """The sessions inside load what they are told to, and colour nothing."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def run(pytester, only_our_plugin):
    """Write a test file, and run pytest on it in this process."""

    def run_pytest(source, *arguments):
        pytester.makepyfile(test_it=HEAD + source)
        return pytester.runpytest_inprocess(*PLUGIN, *arguments)

    return run_pytest


PLUGIN = ("-p", "scenarios.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers")
HEAD = """\
import pytest, torch
import torch.distributed as dist
from scenarios import per_rank

"""
