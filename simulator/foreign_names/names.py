"""The table of the names of torch, Python and other libraries that ddpsim replaces, hooks or reads: `table.txt`.

A heading says where names are used and what for, each line below it what is done with names of one module or class:

    [ranks] virtual time in ranks
    replaced  threading.Thread start join (self) since torch 2.13 until torch 2.15

The owner stands first: a module or class as Python says it, and of what is replaced its submodules, too. In parentheses
are the parameters that are relied on, in their order, those behind a `*` by name; of a frame, the local variables that
are read from it, where `a|b` is either of two. `since` is the first version that has the names, `until` the last.

Prior art: `gevent.monkey` keeps one dictionary of what it has replaced, and a file for each version of Python. Here the
table is data that imports neither torch nor what it names, so `ddpsim doctor` can read it where torch is broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class NameUse(Enum):
    """What ddpsim does with a name."""

    REPLACED = "replaced"
    """By `simulator/runtime/replaced.py`, or by an assignment for the life of a process."""
    ADDED = "added"
    """Put where the owner need not have it."""
    EXCHANGED = "exchanged"
    """A value of which each rank has its own: another rank's takes its place, or the old one comes back after a run."""
    HOOKED = "hooked"
    """A function that calls ours at some event."""
    FOUND = "found"
    """What a finder of ours in `sys.meta_path` replaces or reads when its module is imported."""
    READ = "read"
    """A private name that is called or read."""
    FRAME = "frame"
    """A function that is recognised on the stack."""


class ForeignNames(NamedTuple):
    """Names of one module or class: a line of the table, with its heading."""

    where: str
    """Where they are used, such as "ranks as threads"."""
    why: str
    """What does not work without them."""
    use: NameUse
    owner: str
    names: tuple[str, ...]
    signature: tuple[str, ...]
    since: str
    """Such as "torch 2.13", or ""."""
    until: str


_LINE = re.compile(
    r"(\w+) +(\S+) ((?:(?!since |until )[^()])+?)(?: \(([^)]+)\))?(?: since (\w+ [\d.]+))?(?: until (\w+ [\d.]+))?"
)


@cache
def table() -> tuple[ForeignNames, ...]:
    """The rows of `table.txt`."""
    return tuple(parsed(files(__package__).joinpath("table.txt").read_text(encoding="utf-8")))


def parsed(text: str) -> Iterator[ForeignNames]:
    """The rows of a text in this form. Raises ValueError for a line that is none."""
    where = why = ""
    for line in text.splitlines():
        if line.startswith("["):
            where, _, why = line[1:].partition("] ")
        elif line and not line.startswith("#"):
            found = _LINE.fullmatch(line)
            if found is None:
                raise ValueError(f"a line of the table is {line!r}, expected: use owner names (parameters) since until")
            use, owner, names, signature, since, until = (each or "" for each in found.groups())
            row = ForeignNames(where, why, NameUse(use), owner, _words(names), _words(signature), since, until)
            yield row


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())
