"""The scenarios, one a file: each module here has a `program` to read and the `SCENARIO` made of it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from scenarios.model import Scenario


def _scenarios() -> Iterator[Scenario]:
    for module in pkgutil.iter_modules(__path__):
        scenario = importlib.import_module(f"{__name__}.{module.name}").SCENARIO
        assert isinstance(scenario, Scenario)
        yield scenario


registry: Mapping[str, Scenario] = MappingProxyType(
    {scenario.name: scenario for scenario in sorted(_scenarios(), key=lambda scenario: scenario.name)}
)
"""The scenarios by name."""
