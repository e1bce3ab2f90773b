"""What a run ran on: versions by name, as far as they are installed, without importing any of them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def environment() -> dict[str, str]:
    """Versions of ddpsim, torch and Python, and the platform."""
    found = {"ddpsim": _version("ddpsim"), "torch": _version("torch"), "python": platform.python_version()}
    return {name: text for name, text in found.items() if text} | {"platform": platform.system()}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
