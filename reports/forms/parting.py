"""Where a run that failed and one that passed part, side by side: what was chosen in each, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpsim.reports.document import Chosen, Document, Event, Run, Site
from ddpsim.reports.forms.source import SourceLine, excerpt
from ddpsim.reports.printable import VERBS, printable
from ddpsim.simulator.wording import Line

_FOLLOWING = 3
"""So many events after it are told."""
_LAST = 4
"""So many rows of the choices before it are told on a terminal."""
HERE = "here they part"


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the runs did."""

    line: Line
    """Which run, and its first event of its own."""
    chosen: Chosen | None
    """The choice that led there, if it was looked for."""
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
    choices: tuple[Chosen, ...]
    """The choices that are the same in both; several that took the default as one."""
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
        _side(run, index, line, chosen)
        for run, index, line, chosen in zip(
            runs, indices, explored.difference.sides, explored.difference.choices or (None, None), strict=True
        )
    )
    run, index = next(
        ((run, index) for run, index in zip(runs, indices, strict=True) if index is not None), (runs[0], 0)
    )
    before = _text(run, run.events[index - 1]) if index else ""
    return Parting(index + run.events_left_out, before, explored.difference.before, sides)


def marked_events(document: Document) -> dict[int, int | None]:
    """For the runs of an exploration, the event where they part."""
    explored = document.exploration
    if explored is None or explored.difference is None:
        return {}
    sides = ((explored.failing, explored.difference.failing), (explored.passing, explored.difference.passing))
    return {run: event for run, event in sides if run is not None}


def mark_text(document: Document) -> str:
    """What stands at that event in the lanes."""
    explored = document.exploration
    chosen = None if explored is None or explored.difference is None else explored.difference.choices
    return f"{HERE}, choice {chosen[0].first:,}" if chosen else HERE


def parting_lines(document: Document) -> list[str]:
    """Where the two runs part, for a terminal; [] if they do not."""
    explored = document.exploration
    if explored is None or explored.difference is None:
        return []
    difference = explored.difference
    if not difference.choices:
        return ["what differs", *(f"  {label}  {text}" for label, text in difference.sides)]
    failing, passing = difference.choices
    rows = [("before", each, "") for each in difference.before[-_LAST:]]
    rows += [(side.label, each, side.text) for each, side in zip((failing, passing), difference.sides, strict=True)]
    width = max(len(_numbers(each)) for _, each, _ in rows)
    lines = [_difference_head(failing)]
    if len(difference.before) > _LAST:
        lines.append("  before   ...")
    for label, each, then in rows:
        lines.append(f"  {label:<7}  {_numbers(each):<{width}}  {printable(each.text)}")
        lines += [f"  then     {printable(then)}"] if then else []
    return [*lines, f"  replay   {printable(replay)}"] if (replay := _replay_of(document)) else lines


def _difference_head(chosen: Chosen) -> str:
    after = f", after {chosen.first - 1:,} that are the same" if chosen.first > 1 else ""
    return f"what differs  choice {chosen.first:,} at step {chosen.step:,}{after}"


def _numbers(chosen: Chosen) -> str:
    return f"{chosen.first:,}" if chosen.first == chosen.last else f"{chosen.first:,} to {chosen.last:,}"


def _replay_of(document: Document) -> str:
    """How to see the run that passed."""
    explored = document.exploration
    return "" if explored is None or explored.passing is None else document.runs[explored.passing].replay


def _side(run: Run, index: int | None, line: Line, chosen: Chosen | None) -> Side:
    if index is None:
        return Side(line, chosen, None, (), ())
    site = _site(run, run.events[index])
    return Side(line, chosen, site, () if site is None else excerpt(site), tuple(_following(run, index)))


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
