"""The public names of torch.distributed: each runs in a rank as in torch, is refused, or is reached by no rank.

`public_names.txt` has them in the form of `table.txt`. A heading says which of the three, and why.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any

from ddpsim.simulator.foreign_names.checking import resolve_name_path
from ddpsim.simulator.foreign_names.names import ForeignNames, parse_table

RUNS, REFUSED, UNREACHABLE = "runs", "refused", "unreachable"
"""What a heading may begin with."""

_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed")


@cache
def load_public_names() -> tuple[ForeignNames, ...]:
    """Return the rows of `public_names.txt`."""
    return tuple(parse_table(files(__package__).joinpath("public_names.txt").read_text(encoding="utf-8")))


def refused_names(owner: str) -> dict[str, str]:
    """Return the names of a module or class that are refused, each with what to do instead."""
    rows = [row for row in load_public_names() if row.where == REFUSED and row.owner == owner]
    return {name: row.why for row in rows for name in row.names}


def known_names() -> dict[str, set[str]]:
    """Return the names of the table, by their modules and classes."""
    known: dict[str, set[str]] = defaultdict(set)
    for row in load_public_names():
        known[row.owner].update(row.names)
    return known


def find_new_names() -> list[str]:
    """Return the public names of the installed torch that the table lacks."""
    known, found = known_names(), []
    functions = set().union(*(known[module] for module in _MODULES))
    for owner, names in known.items():
        with suppress(ImportError, AttributeError):  # of another version of torch
            expected = functions if owner in _MODULES else names
            found += [f"{owner}.{name}" for name in public_names_of(owner) if name not in expected]
    return found


def public_names_of(path: str) -> Iterator[str]:
    """Yield a class's public names, or those functions and classes of a module that belong to torch.distributed."""
    owner = resolve_name_path(path)
    if isinstance(owner, ModuleType):
        if path in _MODULES:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some names are deprecated
                yield from (name for name, value in vars(owner).items() if name[0] != "_" and _is_of_torch(value))
    elif not owner.__name__.startswith("_"):
        of_text = dir(str) if issubclass(owner, str) else ()
        yield from (name for name in dir(owner) if name[0] != "_" and name not in of_text)


def _is_of_torch(value: Any) -> bool:
    module = str(getattr(value, "__module__", ""))
    return callable(value) and module.startswith(("torch.distributed", "torch._C._distributed_c10d"))
