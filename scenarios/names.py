"""Names that people mistype, and a file of theirs that has our name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from importlib.machinery import PathFinder


def nearest(name: str, names: Iterable[str]) -> str:
    """A question with the name that is most like `name`, or ""."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {found[0]!r}?" if found else ""


def shadow() -> str:
    """A line about a `ddpsim.py` or `ddpsim/` that programs find in our place, or "".

    Where we were imported first, their modules get ours for their own; what Python would find now is looked for.
    """
    spec = PathFinder.find_spec("ddpsim")
    paths = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
    if spec is None or not paths[0] or spec.origin is None or _is_ours(spec.origin):
        return ""  # a folder without __init__.py is no package as long as a real one can be found
    return (
        f"{_from_here(paths[0])} shadows the package 'ddpsim', expected no other module of that name: rename it, or "
        "run from another folder"
    )


def _is_ours(origin: str) -> bool:
    beside = os.path.join(os.path.dirname(os.path.realpath(origin)), "scenarios", os.path.basename(__file__))
    return os.path.realpath(beside) == os.path.realpath(__file__)


def _from_here(path: str) -> str:
    """As it is shortest."""
    near = os.path.relpath(path)
    return path if near.startswith(os.pardir) else near
