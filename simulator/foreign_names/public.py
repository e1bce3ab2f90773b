"""The public names of torch.distributed: each runs in a rank as in torch, is refused, or is reached by no rank.

`public_names.txt` has them in the form of `table.txt`. A heading says which of the three, and why.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any

from ddpsim.simulator.foreign_names.checking import resolve_name_path
from ddpsim.simulator.foreign_names.names import ForeignNames, parse_table

RUNS, REFUSED, UNREACHABLE = "runs", "refused", "unreachable"

_C10D = "torch.distributed.distributed_c10d"


@cache
def load_public_names() -> tuple[ForeignNames, ...]:
    """Return the rows of `public_names.txt`."""
    return tuple(parse_table(files(__package__).joinpath("public_names.txt").read_text(encoding="utf-8")))


def refused_names(owner: str) -> dict[str, str]:
    """Return the names of a module or class that are refused, each with what to do instead."""
    rows = [row for row in load_public_names() if row.where == REFUSED and row.owner == owner]
    return {name: row.why for row in rows for name in row.names}


def find_new_names() -> list[str]:
    """Return the public names of the installed torch that the table lacks."""
    known: dict[str, set[str]] = defaultdict(set)
    for row in load_public_names():
        known[row.owner].update(row.names)
    known[_C10D] |= known["torch.distributed"]  # most of what the one has it has from the other
    found = []
    for path, names in known.items():
        with suppress(ImportError, AttributeError):  # of another version of torch
            found += [f"{path}.{name}" for name in _public_names_of(path) if name not in names]
    return found


def _public_names_of(path: str) -> list[str]:
    """Return a class's public names, or those functions and classes of a module that belong to torch.distributed."""
    owner: Any = resolve_name_path(path)
    names = [name for name in dir(owner) if name[0] != "_"]
    if isinstance(owner, type):
        is_backend = issubclass(owner, str)  # each registered backend has its name there, those of programs, too
        others = {*dir(str), *(name.upper() for name in vars(owner)["backend_list"])} if is_backend else ()
        return [] if owner.__name__[0] == "_" else [each for each in names if each not in others]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some names are deprecated
        return [each for each in names if path in (_C10D, "torch.distributed") and _is_of_torch(getattr(owner, each))]


def _is_of_torch(value: Any) -> bool:
    module = str(getattr(value, "__module__", ""))
    return callable(value) and module.startswith(("torch.distributed", "torch._C._distributed_c10d"))
