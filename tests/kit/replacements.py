"""Refuses, in all tests, to replace a name of another library that has no row in the table of foreign names.

What the tests' own modules and ddpsim have is left out. Ranks that are processes are forked from a test, so they are
checked, too.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from ddpsim.simulator.foreign_names.checking import resolve_name_path
from ddpsim.simulator.foreign_names.names import NameUse, load_table
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_SETTING = {NameUse.REPLACED, NameUse.ADDED, NameUse.EXCHANGED}


@cache
def _owners() -> dict[str, set[str]]:
    """By name, the owners that have it in the table."""
    found: dict[str, set[str]] = {}
    for row in load_table():
        for path in row.names if row.use in _SETTING else ():
            inner, _, name = path.rpartition(".")
            found.setdefault(name, set()).add(f"{row.owner}.{inner}".rstrip("."))
    return found


@cache
def _libraries() -> frozenset[str]:
    return frozenset(row.owner.partition(".")[0] for row in load_table())


def _path_of(owner: Any) -> str:
    if isinstance(owner, ModuleType):
        return owner.__name__
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{kind.__module__}.{kind.__qualname__}"


def complaint(owner: Any, name: str) -> str:
    """What is wrong with replacing a name; "" if it has a row."""
    path, rows = _path_of(owner), _owners().get(name, set())
    if path.partition(".")[0] not in _libraries() or any(path == each or path.startswith(f"{each}.") for each in rows):
        return ""
    if any(resolve_name_path(each) is owner for each in rows):  # another version of torch may call a class otherwise
        return ""
    return f"{path}.{name} is replaced, and has no row in simulator/foreign_names/table.txt"


def refuse_what_has_no_row() -> None:
    """For a session of pytest."""
    for method in ("set_attribute", "replace_attribute"):
        setattr(ReplacedAttributes, method, _checked(getattr(ReplacedAttributes, method)))


def _checked(put: Any) -> Any:
    def checked(replaced: ReplacedAttributes, owner: Any, name: str, value: Any) -> None:
        if line := complaint(owner, name):
            raise AssertionError(line)
        put(replaced, owner, name, value)

    return checked
