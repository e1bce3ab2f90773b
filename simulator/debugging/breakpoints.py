"""Breakpoints that apply to all ranks. pdb keeps one table of breakpoints per process.

The table of the process that started the run is authoritative: later runs in that process use it, too. Hit counts and
the `commands` of a breakpoint stay with the debugger in which they were made.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class Breakpoint(NamedTuple):
    """One breakpoint of pdb, as a value."""

    number: int
    file: str
    line: int
    is_temporary: bool
    condition: str | None
    function: str | None
    is_enabled: bool
    ignored_hits: int


class Breakpoints(NamedTuple):
    """All breakpoints of a process."""

    those: tuple[Breakpoint, ...] = ()
    next_number: int = 1


def current_breakpoints() -> Breakpoints:
    """Return pdb's breakpoints of this process.

    Does not import `bdb`: if it is not loaded, there are no breakpoints.
    """
    bdb: Any = sys.modules.get("bdb")
    if bdb is None:
        return Breakpoints()
    those = [each for each in bdb.Breakpoint.bpbynumber if each is not None]
    return Breakpoints(tuple(map(_breakpoint_value, those)), bdb.Breakpoint.next)


def _breakpoint_value(point: Any) -> Breakpoint:
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


def set_breakpoints(all_of_them: Breakpoints) -> None:
    """Replace all pdb breakpoints of this process by the given ones."""
    if all_of_them == current_breakpoints():
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
