"""Excerpts of a program's source around a line, without shared indentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddpsim.reports.document import Site


class SourceLine(NamedTuple):
    """A line of an excerpt."""

    number: int
    text: str
    is_marked: bool


def excerpt(site: Site, around: int = 1) -> tuple[SourceLine, ...]:
    """Return the line of a site with up to `around` lines before and after it; () if its file could not be read."""
    numbered = [
        (site.first + offset, text)
        for offset, text in enumerate(site.source)
        if abs(site.first + offset - site.line) <= around
    ]
    while numbered and not numbered[0][1].strip() and numbered[0][0] < site.line:
        del numbered[0]
    while numbered and not numbered[-1][1].strip() and numbered[-1][0] > site.line:
        del numbered[-1]
    texts = dedented([text for _, text in numbered])
    return tuple(
        SourceLine(number, text, number == site.line) for (number, _), text in zip(numbered, texts, strict=True)
    )


def dedented(lines: Sequence[str]) -> list[str]:
    """Return the lines without the indentation that all of them share."""
    written = [line for line in lines if line.strip()]
    shared = 0
    while written and len(found := {line[: shared + 1] for line in written}) == 1 and found.pop().isspace():
        shared += 1
    return [line[shared:] for line in lines]
