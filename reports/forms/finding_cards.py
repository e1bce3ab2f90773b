"""The findings at the top of a run on the HTML page, each with the lines of the program that it is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpsim.reports.document import Finding, Run, Site
from ddpsim.reports.forms.source import SourceLine, excerpt
from ddpsim.reports.layout.code_lines import CodeLine, code_lines_of

_MOST_LINES = 6
_MOST_OTHERS = 12
"""The number of findings that are shown after the first; the text has all."""
_MOST_VALUES = 8


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line of the program with its source."""

    code_line: CodeLine
    site: Site
    caller: Site | None
    source: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class FindingCard:
    """A finding on the page, without the lines of the program that an earlier card shows."""

    finding: Finding
    code_lines: tuple[ShownLine, ...]
    lines_left_out: int
    values: tuple[str, ...]
    """If replicas differ, the value of each rank."""


@dataclass(frozen=True, slots=True)
class FindingCards:
    """The findings of a run on the page, the most important first."""

    cards: tuple[FindingCard, ...]
    left_out: int
    """The number of findings that are only in the text."""


def finding_cards_of(run: Run) -> FindingCards:
    """Return the cards at the top of a run's section."""
    shown = run.findings[: _MOST_OTHERS + 1]
    told: set[int | None] = set()
    cards = []
    for finding in shown:
        code_lines = [code_line for code_line in code_lines_of(run, finding) if code_line.site not in told]
        told |= {code_line.site for code_line in code_lines}
        cards.append(_card(run, finding, code_lines))
    return FindingCards(tuple(cards), len(run.findings) - len(shown))


def _card(run: Run, finding: Finding, code_lines: Sequence[CodeLine]) -> FindingCard:
    shown = tuple(_shown(run, code_line) for code_line in code_lines[:_MOST_LINES] if code_line.site is not None)
    return FindingCard(finding, shown, len(code_lines) - len(shown), tuple(_values(finding)))


def _shown(run: Run, code_line: CodeLine) -> ShownLine:
    assert code_line.site is not None
    site = run.sites[code_line.site]
    caller = None if code_line.caller is None else run.sites[code_line.caller]
    return ShownLine(code_line, site, caller, excerpt(site))


def _values(finding: Finding) -> Iterator[str]:
    """Yield the rows of values of a divergence, since lanes do not show which rank has which value."""
    if finding.code.startswith("divergence."):
        rows = [line.strip() for line in finding.text.splitlines() if line.startswith(("  rank ", "  ranks "))]
        yield from rows[:_MOST_VALUES]
        if len(rows) > _MOST_VALUES:
            yield f"... {len(rows) - _MOST_VALUES} more"
