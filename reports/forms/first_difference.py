"""The point at which a failing and a passing run diverge: what each run chose there, and what followed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpsim.reports.document import Chosen, Document, Event, Run, Site
from ddpsim.reports.forms.source import SourceLine, excerpt
from ddpsim.reports.printable import VERBS, printable
from ddpsim.simulator.wording import Line

_FOLLOWING = 3
"""The number of later events that are shown."""
_LAST = 4
"""The number of rows of earlier choices that a terminal shows."""
DIVERGE_HERE = "runs diverge here"


@dataclass(frozen=True, slots=True)
class DifferenceSide:
    """What one of the two runs did at that point."""

    line: Line
    """The name of the run, and its first event that differs."""
    chosen: Chosen | None
    """The choice that led to the event, if it was searched for."""
    site: Site | None
    source: tuple[SourceLine, ...]
    following: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The point at which two runs diverge."""

    shared: int
    """The number of events that are equal in both runs."""
    before: str
    """The last of these events; "" if there is none."""
    choices: tuple[Chosen, ...]
    """The choices that are equal in both; consecutive choices that took the default are one."""
    sides: tuple[DifferenceSide, ...]
    """The failing run, then the passing run."""


def first_difference_of(document: Document) -> FirstDifference | None:
    """Return the point at which the two runs of an exploration diverge; None without two runs that differ."""
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
    return FirstDifference(index + run.events_left_out, before, explored.difference.before, sides)


def marked_events(document: Document) -> dict[int, int | None]:
    """Return the event at which the runs of an exploration diverge, by the index of the run."""
    explored = document.exploration
    if explored is None or explored.difference is None:
        return {}
    sides = ((explored.failing, explored.difference.failing), (explored.passing, explored.difference.passing))
    return {run: event for run, event in sides if run is not None}


def mark_text(document: Document) -> str:
    """Return the text for that event in the lanes."""
    explored = document.exploration
    chosen = None if explored is None or explored.difference is None else explored.difference.choices
    return f"{DIVERGE_HERE}, choice {chosen[0].first:,}" if chosen else DIVERGE_HERE


def difference_lines(document: Document) -> list[str]:
    """Return lines for a terminal that say where the two runs diverge; [] if they do not."""
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
    after = f", after {chosen.first - 1:,} equal choices" if chosen.first > 1 else ""
    return f"what differs  choice {chosen.first:,} at step {chosen.step:,}{after}"


def _numbers(chosen: Chosen) -> str:
    return f"{chosen.first:,}" if chosen.first == chosen.last else f"{chosen.first:,} to {chosen.last:,}"


def _replay_of(document: Document) -> str:
    """Return the replay command of the passing run."""
    explored = document.exploration
    return "" if explored is None or explored.passing is None else document.runs[explored.passing].replay


def _side(run: Run, index: int | None, line: Line, chosen: Chosen | None) -> DifferenceSide:
    if index is None:
        return DifferenceSide(line, chosen, None, (), ())
    site = _site(run, run.events[index])
    return DifferenceSide(line, chosen, site, () if site is None else excerpt(site), tuple(_following(run, index)))


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
