"""Where a run that failed and one that passed part, side by side: what was chosen in each, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpsim.reports.document import Document, Event, Run, Site
from ddpsim.reports.forms.source import SourceLine, excerpt
from ddpsim.reports.printable import VERBS
from ddpsim.simulator.wording import Line

_FOLLOWING = 3
"""So many events after it are told."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the runs did."""

    line: Line
    """Which run, and its first event of its own."""
    site: Site | None
    source: tuple[SourceLine, ...]
    following: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parting:
    """The first choice that differs."""

    shared: int
    """So many events are the same in both."""
    before: str
    """The last of them; "" if there is none."""
    sides: tuple[Side, ...]
    """That of the run that failed, and that of the run that passed."""


def parting_of(document: Document) -> Parting | None:
    """Where the two runs of an exploration part; None if there are no two, or nothing differs."""
    explored = document.exploration
    if explored is None or explored.difference is None or explored.failing is None or explored.passing is None:
        return None
    runs = document.runs[explored.failing], document.runs[explored.passing]
    indices = explored.difference.failing, explored.difference.passing
    sides = tuple(
        _side(run, index, line) for run, index, line in zip(runs, indices, explored.difference.sides, strict=True)
    )
    run, index = next(
        ((run, index) for run, index in zip(runs, indices, strict=True) if index is not None), (runs[0], 0)
    )
    before = _text(run, run.events[index - 1]) if index else ""
    return Parting(index + run.events_left_out, before, sides)


def _side(run: Run, index: int | None, line: Line) -> Side:
    if index is None:
        return Side(line, None, (), ())
    site = _site(run, run.events[index])
    return Side(line, site, () if site is None else excerpt(site), tuple(_following(run, index)))


def _site(run: Run, event: Event) -> Site | None:
    site = None if event.call is None else run.calls[event.call].site
    return None if site is None else run.sites[site]


def _following(run: Run, index: int) -> Iterator[str]:
    for event in run.events[index + 1 : index + 1 + _FOLLOWING]:
        yield _text(run, event)


def _text(run: Run, event: Event) -> str:
    call = None if event.call is None else run.calls[event.call]
    what = event.text if call is None else f"{call.operation} #{call.sequence}"
    return " ".join(filter(None, [str(event.who), VERBS[event.kind], what]))
