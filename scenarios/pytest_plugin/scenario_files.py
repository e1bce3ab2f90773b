"""Scenario files as pytest tests.

Each TOML file is a test, which passes if the run has the outcome that the file expects. A TOML file is collected if it
contains `ddpsim = 1`, as files saved by ddpsim do, or is named on the command line. torch is imported only when such a
file is collected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddpsim.scenarios.names import describe_shadowing_file

if TYPE_CHECKING:
    from ddpsim.scenarios.model import Scenario

_FIRST_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)
_SAYS_VERSION = re.compile(r"^ddpsim *= *\d+ *(#.*)?$", re.MULTILINE)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return a pytest collector for a scenario file; None for any other file."""
    if file_path.suffix != ".toml" or not (parent.session.isinitpath(file_path) or _has_version_key(file_path)):
        return None
    return ScenarioFile.from_parent(parent, path=file_path)


def _has_version_key(path: Path) -> bool:
    """Return True if a file has the line `ddpsim = N` before its first table. In a table it may be another tool's."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    before_tables, *_ = _FIRST_TABLE.split(text, maxsplit=1)
    return _SAYS_VERSION.search(before_tables) is not None


class ScenarioFile(pytest.File):
    """The pytest collector of a TOML file with a scenario."""

    def collect(self) -> Iterable[pytest.Item]:
        """Yield one test for the scenario, named after its engine."""
        if line := describe_shadowing_file():
            raise self.CollectError(line)
        from ddpsim import UsageError
        from ddpsim.scenarios.files.loader import load

        try:
            scenario = load(os.path.relpath(self.path))  # the replay line shows this path
        except UsageError as error:
            raise self.CollectError(str(error)) from None
        yield ScenarioItem.from_parent(self, name=scenario.engine.value, scenario=scenario)


class ScenarioItem(pytest.Item):
    """The test of a scenario file: a single run."""

    def __init__(self, *, scenario: Scenario, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._scenario = scenario

    def runtest(self) -> None:
        """Run the scenario; raise UnexpectedOutcome if the outcome is not the expected one."""
        from ddpsim.scenarios.cli.judgement import judge_result
        from ddpsim.scenarios.running.runner import run_scenario

        result = run_scenario(self._scenario)
        expected = self._scenario.expected_by(self._scenario.engine)
        if not expected.is_met_by(result):
            raise UnexpectedOutcome(f"{result}\n\n{judge_result(expected, result).line}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the diagnosis of an unexpected outcome; a traceback for any other error."""
        if isinstance(excinfo.value, UnexpectedOutcome):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the file, its first line, and the test's name with the scenario's summary."""
        return self.path, 0, f"{self.path.name}: {self._scenario.summary}"


class UnexpectedOutcome(Exception):
    """The outcome of a run is not the outcome that the scenario's file expects."""
