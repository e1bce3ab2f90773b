"""Breakpoints hold in all ranks: pdb keeps one table of them in a process, and heeds it in the threads that it traces.

The table of the process that started an execution is the one that counts: runs that come after it find it there.
Counts of hits, and what `commands` says is to be done at one, stay with the debugger that has them.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class Breakpoint(NamedTuple):
    """One of them, as pdb knows it."""

    number: int
    file: str
    line: int
    is_temporary: bool
    condition: str | None
    function: str | None
    is_enabled: bool
    ignored_hits: int


class Breakpoints(NamedTuple):
    """All of a process."""

    those: tuple[Breakpoint, ...] = ()
    next_number: int = 1


def breakpoints() -> Breakpoints:
    """Those of this process. Who has none need not import pdb's base."""
    bdb: Any = sys.modules.get("bdb")
    if bdb is None:
        return Breakpoints()
    those = [each for each in bdb.Breakpoint.bpbynumber if each is not None]
    return Breakpoints(tuple(map(_told, those)), bdb.Breakpoint.next)


def _told(point: Any) -> Breakpoint:
    return Breakpoint(
        point.number,
        point.file,
        point.line,
        bool(point.temporary),
        point.cond,
        point.funcname,
        bool(point.enabled),
        point.ignore,
    )


def put(all_of_them: Breakpoints) -> None:
    """Let this process have these, and no others."""
    if all_of_them == breakpoints():
        return
    import bdb

    bdb.Breakpoint.bplist, bdb.Breakpoint.bpbynumber = {}, [None]
    for point in all_of_them.those:
        bdb.Breakpoint.next = point.number
        bdb.Breakpoint.bpbynumber += [None] * (point.number - len(bdb.Breakpoint.bpbynumber))
        made = bdb.Breakpoint(point.file, point.line, point.is_temporary, point.condition, point.function)
        made.enabled, made.ignore = point.is_enabled, point.ignored_hits
    bdb.Breakpoint.next = all_of_them.next_number
    bdb.Breakpoint.bpbynumber += [None] * (all_of_them.next_number - len(bdb.Breakpoint.bpbynumber))
