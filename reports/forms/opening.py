"""What the page opens with: what each finding says, and the lines of the program that it speaks of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpsim.reports.document import Finding, Run, Site
from ddpsim.reports.forms.source import SourceLine, excerpt
from ddpsim.reports.layout.places import Place, places_of

_MOST_PLACES = 6
_MOST_OTHERS = 12
"""Findings beside the leading one whose lines are shown; the text has all."""
_MOST_VALUES = 8


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """A place with its source."""

    place: Place
    site: Site
    caller: Site | None
    source: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """A finding as it is shown; lines of the program that an earlier one has shown are not shown again."""

    finding: Finding
    places: tuple[ShownPlace, ...]
    places_left_out: int
    values: tuple[str, ...]
    """Of replicas that differ, what each rank has."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The findings of a run, the leading one first."""

    cards: tuple[Card, ...]
    left_out: int
    """Further findings, which are in the text."""


def opening_of(run: Run) -> Opening:
    """What the section of a run opens with."""
    shown = run.findings[: _MOST_OTHERS + 1]
    told: set[int | None] = set()
    cards = []
    for finding in shown:
        places = [place for place in places_of(run, finding) if place.site not in told]
        told |= {place.site for place in places}
        cards.append(_card(run, finding, places))
    return Opening(tuple(cards), len(run.findings) - len(shown))


def _card(run: Run, finding: Finding, places: Sequence[Place]) -> Card:
    shown = tuple(_shown(run, place) for place in places[:_MOST_PLACES] if place.site is not None)
    return Card(finding, shown, len(places) - len(shown), tuple(_values(finding)))


def _shown(run: Run, place: Place) -> ShownPlace:
    assert place.site is not None
    site = run.sites[place.site]
    caller = None if place.caller is None else run.sites[place.caller]
    return ShownPlace(place, site, caller, excerpt(site))


def _values(finding: Finding) -> Iterator[str]:
    """The rows of a divergence: nothing of the lanes shows which rank has which value."""
    if finding.code.startswith("divergence."):
        rows = [line.strip() for line in finding.text.splitlines() if line.startswith(("  rank ", "  ranks "))]
        yield from rows[:_MOST_VALUES]
        if len(rows) > _MOST_VALUES:
            yield f"... {len(rows) - _MOST_VALUES} more"
