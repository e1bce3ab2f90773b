"""Breakpoints that apply to all ranks. pdb keeps one table of breakpoints per process.

The table of the process that started the run counts: later runs in that process use it, too. Hit counts and the
`commands` of a breakpoint belong to the debugger in which they were made.
"""

import sys
from operator import attrgetter
from typing import Any, NamedTuple

_values_of = attrgetter("number", "file", "line", "temporary", "cond", "funcname", "enabled", "ignore")


class AllBreakpoints(NamedTuple):
    """All breakpoints of a process, as a message to other processes."""

    those: tuple[tuple[Any, ...], ...] = ()
    """For each breakpoint, the values of its attributes (`_values_of`)."""
    next_number: int = 1


def current_breakpoints() -> AllBreakpoints:
    """Return pdb's breakpoints of this process, without importing `bdb`: if `bdb` is not loaded, there are none."""
    bdb: Any = sys.modules.get("bdb")
    if bdb is None:
        return AllBreakpoints()
    those = [_values_of(each) for each in bdb.Breakpoint.bpbynumber if each is not None]
    return AllBreakpoints(tuple(those), bdb.Breakpoint.next)


def set_breakpoints(all_of_them: AllBreakpoints) -> None:
    """Replace all pdb breakpoints of this process by the given ones."""
    if all_of_them == current_breakpoints():
        return
    import bdb

    bdb.Breakpoint.bplist, bdb.Breakpoint.bpbynumber = {}, [None]
    for number, file, line, is_temporary, condition, function, is_enabled, ignored_hits in all_of_them.those:
        bdb.Breakpoint.next = number
        bdb.Breakpoint.bpbynumber += [None] * (number - len(bdb.Breakpoint.bpbynumber))
        made = bdb.Breakpoint(file, line, is_temporary, condition, function)
        made.enabled, made.ignore = is_enabled, ignored_hits
    bdb.Breakpoint.next = all_of_them.next_number
    bdb.Breakpoint.bpbynumber += [None] * (all_of_them.next_number - len(bdb.Breakpoint.bpbynumber))
