"""The scenarios that come with ddpsim, by name: the zoo of real bugs, and the join matrix.

A file has the name of its scenario, so one scenario is found without loading the others. If a file cannot be loaded,
`problems_of_files` has the reason, and the other files can still be used.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from ddpsim import UsageError
from ddpsim.scenarios.files.catalogue import FOLDERS, PACKAGE, scenario_files
from ddpsim.scenarios.files.python_file import import_problem, load_scenarios, scenarios_in_module
from ddpsim.scenarios.model import TWIN, Scenario


class Registry(Mapping[str, Scenario]):
    """The scenarios of some folders, by default of this package, in the order of their names."""

    def __init__(self, root: Path = PACKAGE, folders: Iterable[str] = FOLDERS) -> None:
        self._paths = {path.stem.replace("_", "-"): path for path in scenario_files(root, folders)}

    @property
    def problems_of_files(self) -> tuple[str, ...]:
        """For each file that could not be loaded, the reason."""
        return tuple(loaded for path in self._paths.values() if isinstance(loaded := _load_file(path), str))

    def problem_of_file(self, name: str) -> str:
        """Return why the file with this scenario name cannot be loaded; "" if it can be loaded or does not exist."""
        loaded = _load_file(self._paths[name]) if name in self._paths else ""
        return loaded if isinstance(loaded, str) else ""

    def __getitem__(self, name: str) -> Scenario:
        path = self._paths.get(name) or self._paths.get(name.removesuffix(TWIN))
        loaded = () if path is None else _load_file(path)
        for scenario in loaded if isinstance(loaded, tuple) else ():
            if scenario.name == name:
                return scenario
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        files = [loaded for path in self._paths.values() if isinstance(loaded := _load_file(path), tuple)]
        return iter(sorted(scenario.name for own in files for scenario in own))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _load_file(path: Path) -> tuple[Scenario, ...] | str:
    """Return the scenarios in a file, or the reason why the file cannot be loaded."""
    try:
        found = load_scenarios(path) if path.suffix != ".py" else scenarios_in_module(_import_file(path))
    except UsageError as error:
        return str(error)
    name = path.stem.replace("_", "-")
    for scenario in found.values():
        if scenario.name not in (name, name + TWIN):  # it could not be found by this name
            return f"{path} has a scenario named {scenario.name!r}, expected {name!r}: rename the scenario or the file"
    return tuple(found.values())


def _import_file(path: Path) -> ModuleType:
    try:
        return importlib.import_module(f"ddpsim.scenarios.{path.parent.name}.{path.stem}")
    except (Exception, SystemExit) as error:
        raise UsageError(import_problem(path, error)) from error


registry = Registry()
"""The scenarios that come with ddpsim."""
