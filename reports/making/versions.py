"""Versions of what a run used, without importing it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def environment() -> dict[str, str]:
    """Return the versions of ddpsim, torch and Python, and the platform, without importing torch."""
    found = {"ddpsim": _version("ddpsim"), "torch": _version("torch"), "python": platform.python_version()}
    return {name: text for name, text in found.items() if text} | {"platform": platform.system()}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
