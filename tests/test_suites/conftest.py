"""Suites written by pytester and run by pytest with `--ddpsim`, as tests/pytest_plugin runs its sessions."""

from tests.pytest_plugin.conftest import (  # noqa: F401
    everything_is_imported,
    nothing_is_left,
    run,
    run_apart,
    same_everywhere,
)
