"""Computes spans of logical time for the calls and waits of a run. The time is the index of an event.

A call lasts from its issue to the end of the wait for it, or until it was matched if no rank waited for it. A call or
wait that never ended lasts until the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ddpsim.reports.document import Run
from ddpsim.simulator.choices import Who
from ddpsim.simulator.events import EventKind


class Span(NamedTuple):
    """The time of a call, or of a wait that is not for a call."""

    start: int
    """The index of the event that begins it."""
    end: int
    who: Who
    call: int | None
    """Index into the run's calls."""
    slot: int | None
    has_ended: bool


def spans_of(run: Run) -> list[Span]:
    """Return the spans, sorted by their start."""
    return sorted([*_calls(run), *_other_waits(run)])


def _calls(run: Run) -> Iterator[Span]:
    slot_of = run.slot_of
    waited: dict[tuple[int, int], int | None] = {}
    """By rank and call, the event that ended the wait; None if it has not ended."""
    for index, event in enumerate(run.events):
        if event.call is not None and event.kind in (EventKind.WAIT, EventKind.DONE):
            waited[event.rank, event.call] = index if event.kind is EventKind.DONE else None
    for index, event in enumerate(run.events):
        if event.kind is not EventKind.ISSUE or event.call is None:
            continue
        slot = slot_of.get(index)
        match = None if slot is None else run.slots[slot].match
        end = waited.get((event.rank, event.call), match)
        yield Span(
            index,
            len(run.events) if end is None else end,
            event.who,
            event.call,
            slot,
            has_ended=end is not None,
        )


def _other_waits(run: Run) -> Iterator[Span]:
    """Yield waits for the clock, the store, a lock or another thread."""
    open_: dict[Who, int] = {}
    for index, event in enumerate(run.events):
        if event.call is not None:
            continue
        if event.kind is EventKind.WAIT:
            open_[event.who] = index
        elif event.kind is EventKind.DONE and (start := open_.pop(event.who, None)) is not None:
            yield Span(start, index, event.who, None, None, has_ended=True)
    for who, start in open_.items():
        yield Span(start, len(run.events), who, None, None, has_ended=False)
