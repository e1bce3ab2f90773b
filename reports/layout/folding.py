"""Finds columns that a page may fold into one: every call there was matched, and no failure is near.

The calls at the start that make groups and wrap the model are folded in each picture, others only in a wide one.
"""

from collections.abc import Set
from itertools import groupby
from typing import NamedTuple

from ddpsim.reports.document import Run
from ddpsim.reports.layout.lanes import Lanes
from ddpsim.simulator.calls import Phase
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.wording import values_by_key

_FEW = 40
"""Pictures with at most this many columns have no folded columns."""
_BEFORE = 10
"""The number of columns kept before an important column; `_AFTER` columns are kept after it."""
_AFTER = 4
_FIRST = 4
_LEAST = 12
"""The least number of columns to fold."""
_LEAST_OF_SETUP = 3
_SETUP = frozenset({Phase.PARAMETER_CHECK.value, Phase.STATE_BROADCAST.value})
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
    telling = _telling_columns(run, lanes, marked)
    setup = _setup_columns(run, lanes, telling)
    folds = [Fold(0, setup - 1, f"setup: {setup} calls", "the same on all ranks")] if setup >= _LEAST_OF_SETUP else []
    if lanes.columns > _FEW:
        kept = _columns_to_keep(lanes, telling)
        parts = [list(part) for is_kept, part in groupby(range(setup, lanes.columns), kept.__contains__) if not is_kept]
        folds += [_make_fold(run, lanes, part[0], part[-1]) for part in parts if len(part) > _LEAST]
    return tuple(folds)


def _setup_columns(run: Run, lanes: Lanes, telling: Set[int]) -> int:
    """Return how many columns at the start have only calls of all ranks that make groups or wrap a model."""
    calls = values_by_key((item.column, item) for item in lanes.items)
    for column in range(lanes.columns):
        own = [run.calls[item.call] for item in calls.get(column, ())]
        is_setup = all(call.phase in _SETUP or call.operation == "new_group" for call in own)
        is_shared = all(len(run.slots[item.slot].issues) == run.world_size for item in calls.get(column, ()))
        if not own or not is_setup or not is_shared or column in telling:
            return column
    return lanes.columns


def _telling_columns(run: Run, lanes: Lanes, marked: int | None) -> set[int]:
    telling = {item.column for item in lanes.items if item.odd or item.beside or item.event == marked}
    telling |= {item.column for item in lanes.items if run.slots[item.slot].state != "matched"}
    telling |= {each.column for each in lanes.missing}
    telling |= {
        round(mark.position) for mark in lanes.marks if any(run.events[each].kind in _TELLING for each in mark.events)
    }
    return telling | {round(mark.position) for mark in lanes.marks if marked in mark.events}


def _columns_to_keep(lanes: Lanes, telling: Set[int]) -> set[int]:
    """Return the columns that are kept: the first, the last, and those near an important column."""
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
