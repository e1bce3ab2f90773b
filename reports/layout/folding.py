"""Finds columns that a page may fold into one: every call there was matched, and no failure is near."""

from itertools import groupby
from typing import NamedTuple

from ddpsim.reports.document import Run
from ddpsim.reports.layout.lanes import Lanes
from ddpsim.simulator.events import EventKind

_FEW = 40
"""Pictures with at most this many columns have no folded columns."""
_BEFORE = 10
"""The number of columns kept before an important column; `_AFTER` columns are kept after it."""
_AFTER = 4
_FIRST = 4
_LEAST = 12
"""The least number of columns to fold."""
_TELLING = frozenset({EventKind.FAULT, EventKind.NOTE, EventKind.RAISE})


class Fold(NamedTuple):
    """Consecutive columns that may be shown as one."""

    first: int
    last: int
    what: str
    """The label of the fold, such as "steps 1 to 40"."""
    why: str
    """The reason why these columns may be folded, as text."""


def folds_of(run: Run, lanes: Lanes, marked: int | None = None) -> tuple[Fold, ...]:
    """Return the columns to fold, from left to right; `marked` is an event that the picture points at."""
    if lanes.columns <= _FEW:
        return ()
    kept = _columns_to_keep(run, lanes, marked)
    parts = [list(part) for is_kept, part in groupby(range(lanes.columns), kept.__contains__) if not is_kept]
    return tuple(_make_fold(run, lanes, part[0], part[-1]) for part in parts if len(part) > _LEAST)


def _columns_to_keep(run: Run, lanes: Lanes, marked: int | None) -> set[int]:
    """Return the columns that are kept: the first, the last, and those near an important column."""
    telling = {item.column for item in lanes.items if item.odd or item.beside or item.event == marked}
    telling |= {item.column for item in lanes.items if run.slots[item.slot].state != "matched"}
    telling |= {each.column for each in lanes.missing}
    telling |= {
        round(mark.position) for mark in lanes.marks if any(run.events[each].kind in _TELLING for each in mark.events)
    }
    telling |= {round(mark.position) for mark in lanes.marks if marked in mark.events}
    kept = set(range(_FIRST)) | set(range(lanes.columns - _FIRST, lanes.columns))
    for column in telling:
        kept |= set(range(column - _BEFORE, column + _AFTER + 1))
    return kept


def _make_fold(run: Run, lanes: Lanes, first: int, last: int) -> Fold:
    slots = {item.slot for item in lanes.items if first <= item.column <= last}
    shared = all(len(run.slots[slot].issues) == run.world_size for slot in slots)
    steps = [
        int(run.events[event].text)
        for mark in lanes.marks
        if mark.lane == 0 and first <= mark.position < last + 1
        for event in mark.events
        if run.events[event].kind is EventKind.STEP and run.events[event].text.isdecimal()
    ]
    what = f"steps {min(steps)} to {max(steps)}" if len(set(steps)) > 1 else f"{last - first + 1} columns"
    return Fold(first, last, what, "the same on all ranks" if shared else "all calls matched")
