"""The findings at the top of a run on the HTML page, each with the lines of the program that it is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpsim.reports.document import Finding, Run, Site
from ddpsim.reports.forms.source import SourceLine, excerpt
from ddpsim.reports.layout.places import Place, places_of

_MOST_PLACES = 6
_MOST_OTHERS = 12
"""The number of findings that are shown after the first; the text has all."""
_MOST_VALUES = 8


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """A line of the program with its source."""

    place: Place
    site: Site
    caller: Site | None
    source: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """A finding on the page, without the lines of the program that an earlier card shows."""

    finding: Finding
    places: tuple[ShownPlace, ...]
    places_left_out: int
    values: tuple[str, ...]
    """If replicas differ, the value of each rank."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The findings of a run on the page, the most important first."""

    cards: tuple[Card, ...]
    left_out: int
    """The number of findings that are only in the text."""


def opening_of(run: Run) -> Opening:
    """Return the cards at the top of a run's section."""
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
    """Yield the rows of values of a divergence, since lanes do not show which rank has which value."""
    if finding.code.startswith("divergence."):
        rows = [line.strip() for line in finding.text.splitlines() if line.startswith(("  rank ", "  ranks "))]
        yield from rows[:_MOST_VALUES]
        if len(rows) > _MOST_VALUES:
            yield f"... {len(rows) - _MOST_VALUES} more"
