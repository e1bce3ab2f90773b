"""A plugin that does what `--ddpsim` does: `pytest -p ddpsim.harness`, or `pytest_plugins` of a conftest.py."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Simulate the ranks that tests start."""
    config.option.ddpsim = True
