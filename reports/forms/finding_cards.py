"""The findings at the top of a run on the HTML page, each with the lines of the program that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpsim.reports.document import Finding, Run
from ddpsim.reports.layout.code_lines import CodeLine, code_lines_of

_MOST_LINES = 6
_MOST_CARDS = 13
"""The number of findings that the page shows; the text has all."""
_MOST_VALUES = 8


@dataclass(frozen=True, slots=True)
class FindingCard:
    """A finding on the page, without the lines of the program that an earlier card shows."""

    finding: Finding
    code_lines: tuple[CodeLine, ...]
    lines_left_out: int
    values: tuple[str, ...]
    """If replicas differ, the value of each rank."""


def finding_cards_of(run: Run) -> tuple[FindingCard, ...]:
    """Return the cards at the top of a run's section, the most important first."""
    shown: set[int] = set()
    cards = []
    for finding in run.findings[:_MOST_CARDS]:
        lines = tuple(line for line in code_lines_of(run, finding) if line.site not in shown)
        shown |= {line.site for line in lines}
        left_out = max(0, len(lines) - _MOST_LINES)
        cards.append(FindingCard(finding, lines[:_MOST_LINES], left_out, tuple(_values(finding))))
    return tuple(cards)


def _values(finding: Finding) -> Iterator[str]:
    """Yield the rows of values of a divergence, since lanes do not show which rank has which value."""
    if finding.code.startswith("divergence."):
        rows = [line.strip() for line in finding.text.splitlines() if line.startswith(("  rank ", "  ranks "))]
        yield from rows[:_MOST_VALUES]
        if len(rows) > _MOST_VALUES:
            yield f"... {len(rows) - _MOST_VALUES} more"
