"""Suggestions for mistyped names, and detection of a user's file that hides the package `ddpsim`."""

import difflib
import os
from collections.abc import Iterable
from importlib.machinery import PathFinder


def suggest_nearest_name(name: str, names: Iterable[str]) -> str:
    """Return "did you mean ...?" with the name most similar to a mistyped one; "" if none is similar."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {found[0]!r}?" if found else ""


def describe_shadowing_file() -> str:
    """Return a message on a user's file `ddpsim.py` or folder `ddpsim/` that Python would import as ddpsim; "" if there
    is none. ddpsim itself is imported already, so the function asks what Python would find now."""
    spec = PathFinder.find_spec("ddpsim")
    paths = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
    if spec is None or not paths[0] or spec.origin is None or _is_own_package(spec.origin):
        return ""  # a folder without __init__.py does not hide a real package
    near = os.path.relpath(paths[0])
    return (
        f"{paths[0] if near.startswith(os.pardir) else near} shadows the package 'ddpsim', expected no other module of "
        "that name: rename it, or run from another folder"
    )


def _is_own_package(origin: str) -> bool:
    beside = os.path.join(os.path.dirname(os.path.realpath(origin)), "scenarios", os.path.basename(__file__))
    return os.path.realpath(beside) == os.path.realpath(__file__)
