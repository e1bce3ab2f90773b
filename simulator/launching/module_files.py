"""The file of a module, found without importing anything: what its packages do is for the ranks to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder

from ddpsim.simulator.errors import UsageError


def file_of(name: str) -> str:
    """The file that `python -m name` runs, from the working folder; "" if it is not one of Python.

    Raises UsageError if there is none.
    """
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec_in(f"{name}.__main__", spec.submodule_search_locations)
        if spec is None:
            raise UsageError(
                f"module {name!r} is a package without __main__.py, expected a module that `python -m {name}` runs: "
                "name one of the package's"
            )
    if spec is None:
        raise UsageError(f"there is no module {name!r}, expected one that `python -m {name}` finds: correct the name")
    return spec.origin if spec.origin is not None and spec.origin.endswith(".py") else ""


def _spec_of(name: str) -> ModuleSpec | None:
    locations: Sequence[str] | None = None
    spec, parts = None, name.split(".")
    for number in range(len(parts)):
        package, spec = spec, _spec_in(".".join(parts[: number + 1]), locations)
        if spec is None:
            # A package that changes where its modules are shows that only when it is imported.
            return ModuleSpec(name, None) if package is not None and "__path__" in _text(package) else None
        locations = spec.submodule_search_locations
        if locations is None and number + 1 < len(parts):
            return None
    return spec


def _text(spec: ModuleSpec) -> str:
    """The source of a package's own file; "" where it has none."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    with open(spec.origin, errors="replace") as file:
        return file.read()


def _spec_in(name: str, locations: Sequence[str] | None) -> ModuleSpec | None:
    before = sys.path[:]
    sys.path.insert(0, os.getcwd())  # as for `python -m`
    try:
        for finder in sys.meta_path:
            try:
                # Told the package, it looks that up in sys.modules for what is in a folder without __init__.py.
                spec = finder.find_spec(name.rpartition(".")[2] if finder is PathFinder else name, locations)
            except (ImportError, ValueError, AttributeError, KeyError):
                spec = None
            if spec is not None:
                return spec
    finally:
        sys.path[:] = before
    return None
