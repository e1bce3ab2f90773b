"""The scenarios that come with ddpsim, by name: the zoo of real bugs, and the join matrix.

A file that cannot be loaded takes none of the others with it: why it cannot stands in `broken`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from scenarios.files import SUFFIXES, import_problem, scenarios_in, scenarios_of
from scenarios.model import Scenario
from simulator import UsageError

_PACKAGES = ("zoo", "join")


class Registry(Mapping[str, Scenario]):
    """The scenarios of some folders of this package, in the order of their names."""

    def __init__(self, root: Path, folders: tuple[str, ...]) -> None:
        found: dict[str, Scenario] = {}
        broken: list[str] = []
        for path in (path for folder in folders for path in sorted((root / folder).iterdir())):
            if path.suffix in SUFFIXES and not path.name.startswith("_"):
                try:
                    found |= {scenario.name: scenario for scenario in _load(path)}
                except UsageError as error:
                    broken.append(str(error))
        self._scenarios = MappingProxyType(dict(sorted(found.items())))
        self.broken = tuple(broken)
        """For each file that could not be loaded, why."""

    def __getitem__(self, name: str) -> Scenario:
        return self._scenarios[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._scenarios)

    def __len__(self) -> int:
        return len(self._scenarios)


def _load(path: Path) -> tuple[Scenario, ...]:
    if path.suffix != ".py":
        return scenarios_in(path)
    try:
        return scenarios_of(importlib.import_module(f"{__package__}.{path.parent.name}.{path.stem}"))
    except Exception as error:
        raise UsageError(import_problem(path, error)) from error


registry = Registry(Path(__file__).parent, _PACKAGES)
"""The scenarios that come with ddpsim."""
