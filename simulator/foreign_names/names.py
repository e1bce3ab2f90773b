"""Parses `table.txt`, the table of the names of torch, Python and other libraries that ddpsim replaces, hooks or reads.

A heading says where and why names are used, and each line below it how ddpsim uses names of one module or class:

    [ranks] virtual time in ranks
    replaced  threading.Thread start join (self) since torch 2.13 until torch 2.15

The module or class comes first. Parentheses contain the parameters that ddpsim needs, in their order; those after a `*`
are passed by name. For a frame they contain the local variables that ddpsim reads; `a|b` is one of two. `since` is the
first version that has the names, `until` the last.
"""

import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class NameUse(Enum):
    """What ddpsim does with a name of torch, Python or another library."""

    REPLACED = "replaced"
    """Replaced by `simulator/runtime/replaced.py`, or by an assignment until the process ends."""
    ADDED = "added"
    """An attribute that is set, whether or not its module or class has one."""
    EXCHANGED = "exchanged"
    """A value that each rank has for itself; it is exchanged when ranks switch, and restored after a run."""
    HOOKED = "hooked"
    """A function that calls ddpsim at an event."""
    FOUND = "found"
    """Replaced or read when its module is imported, by a finder in `sys.meta_path`."""
    READ = "read"
    """A private name that is called or read."""
    FRAME = "frame"
    """A function that ddpsim recognises on the stack."""
    CALLED = "called"
    """A public name that programs use; a row of `public_names.txt`."""


class ForeignNames(NamedTuple):
    """A row of table.txt: names of a module or class of torch or Python that ddpsim uses, and the heading above."""

    where: str
    """The part of ddpsim that uses the names, such as "ranks as threads"."""
    why: str
    """The feature of ddpsim that fails without the names."""
    use: NameUse
    owner: str
    names: tuple[str, ...]
    signature: tuple[str, ...]
    since: str
    """The first version that has the names, such as "torch 2.13"; "" if every version has them."""
    until: str


_LINE = re.compile(
    r"(\w+) +(\S+) ((?:(?!since |until )[^()])+?)(?: \(([^)]+)\))?(?: since (\w+ [\d.]+))?(?: until (\w+ [\d.]+))?"
)


@cache
def load_table() -> tuple[ForeignNames, ...]:
    """Return the rows of `table.txt`."""
    return tuple(parse_table(files(__package__).joinpath("table.txt").read_text(encoding="utf-8")))


def parse_table(text: str) -> Iterator[ForeignNames]:
    """Yield the rows of a text in the form of `table.txt`. Raises ValueError for an invalid line."""
    where = why = ""
    for line in text.splitlines():
        if line.startswith("["):
            where, _, why = line[1:].partition("] ")
        elif line and not line.startswith("#"):
            found = _LINE.fullmatch(line)
            if found is None:
                raise ValueError(
                    f"foreign_names/table.txt has {line!r}, expected 'USE OWNER NAMES (PARAMETERS)': correct it"
                )
            use, owner, names, signature, since, until = (each or "" for each in found.groups())
            words = tuple(names.split()), tuple(signature.split())
            yield ForeignNames(where, why, NameUse(use), owner, *words, since, until)
