"""Names that people mistype, and names of ours that their files have as well."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from collections.abc import Iterable

OWN_PACKAGES = ("simulator", "ddp", "reports")
"""What scenarios import when they need it, which in a session of pytest is after the user's own files."""


def nearest(name: str, names: Iterable[str]) -> str:
    """A question with the name that is most like `name`, or ""."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {found[0]!r}?" if found else ""


def shadow(names: Iterable[str] = OWN_PACKAGES) -> str:
    """A line about a file or folder that Python finds, or has found, in the place of a package of ours, or ""."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in names:
        place = _place_of(name)
        if place and os.path.realpath(place) != os.path.join(home, name):
            return (
                f"{_from_here(place)} shadows the package {name!r} of ddpsim, expected no other module of that name: "
                "rename it, or run from another folder"
            )
    return ""


def _place_of(name: str) -> str:
    """The file of a module or the folder of a package, without importing it; "" if Python finds none."""
    known = sys.modules.get(name)
    spec = known.__spec__ if known is not None else importlib.util.find_spec(name)
    if spec is None:
        return ""
    folders = list(spec.submodule_search_locations or ())
    return folders[0] if folders else spec.origin or ""


def _from_here(path: str) -> str:
    """As it is shortest."""
    near = os.path.relpath(path)
    return path if near.startswith(os.pardir) else near
