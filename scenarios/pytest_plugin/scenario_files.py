"""Scenario files: each is a test, which passes if the run comes to what the file expects.

A TOML file is collected if it says `ddpsim = 1`, as saved ones do, or is named on the command line. torch is imported
when such a test is collected, not before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddpsim.scenarios.names import shadow

if TYPE_CHECKING:
    from ddpsim.scenarios.model import Scenario

_FIRST_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)
_SAYS_VERSION = re.compile(r"^ddpsim *= *\d+ *(#.*)?$", re.MULTILINE)


def collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A file of a scenario; None for another one."""
    if file_path.suffix != ".toml" or not (parent.session.isinitpath(file_path) or _says_version(file_path)):
        return None
    return ScenarioFile.from_parent(parent, path=file_path)


def _says_version(path: Path) -> bool:
    """True if it is a scenario file by its own word; that a table of another file mentions ddpsim is not enough."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    before_tables, *_ = _FIRST_TABLE.split(text, maxsplit=1)
    return _SAYS_VERSION.search(before_tables) is not None


class ScenarioFile(pytest.File):
    """A TOML file, which has one scenario."""

    def collect(self) -> Iterable[pytest.Item]:
        """The scenario, called by the engine that it runs on."""
        if line := shadow():
            raise self.CollectError(line)
        from ddpsim import UsageError
        from ddpsim.scenarios.files.loader import load

        try:
            scenario = load(os.path.relpath(self.path))  # as the replay line then names it
        except UsageError as error:
            raise self.CollectError(str(error)) from None
        yield ScenarioItem.from_parent(self, name=scenario.engine.value, scenario=scenario)


class ScenarioItem(pytest.Item):
    """One run of a scenario."""

    def __init__(self, *, scenario: Scenario, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._scenario = scenario

    def runtest(self) -> None:
        """Run it; raise UnexpectedOutcome if it comes to something else than the file expects."""
        from ddpsim.scenarios.cli.judgement import conclusion
        from ddpsim.scenarios.running.runner import run_scenario

        result = run_scenario(self._scenario)
        expected = self._scenario.expected_by(self._scenario.engine)
        if not expected.is_met_by(result):
            raise UnexpectedOutcome(f"{result}\n\n{conclusion(expected, result)}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The diagnosis, which is all there is to know; a traceback for errors of another kind."""
        if isinstance(excinfo.value, UnexpectedOutcome):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The file, and what it says of itself."""
        return self.path, 0, f"{self.path.name}: {self._scenario.summary}"


class UnexpectedOutcome(Exception):
    """A run came to something else than its file expects."""
