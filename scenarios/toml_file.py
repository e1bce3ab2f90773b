"""Declared scenarios: a TOML file as a Scenario."""

from __future__ import annotations

from pathlib import Path

from scenarios.model import Scenario


def read_toml(path: Path) -> Scenario:
    """The scenario in a TOML file."""
    raise NotImplementedError
