"""Suites written by pytester and run by pytest with `--ddpsim`, each session in a process of its own.

torch's test classes change the process that imports them: flags of torch's backends, and hypothesis' settings.
"""

import pytest

from tests.pytest_plugin.conftest import run_apart, same_everywhere  # noqa: F401


@pytest.fixture
def run(run_apart):  # noqa: F811
    """Write a test file, if a source is given, and run pytest on it."""
    return run_apart
