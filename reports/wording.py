"""Words that several forms share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpsim.reports.document import EventKind

_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Control characters, changes of direction, half characters, and what is no character.

A terminal would obey some of them, and XML has no place for others.
"""


VERBS: dict[EventKind, str] = {
    "issue": "issues",
    "match": "completes",
    "wait": "waits for",
    "done": "goes on after",
    "store": "store",
    "sleep": "sleeps",
    "fault": "fault",
    "step": "finishes step",
    "note": "",
    "return": "returns",
    "raise": "raises",
}
"""What a rank does in an event, by its kind; what it does it to follows."""


def rank_list(ranks: Sequence[int]) -> str:
    """Ranks in ascending order as "rank 3" or "ranks 0-4, 6"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [_run_text(first, last) for first, last in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts)}"


def _run_text(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"


def printable(text: str) -> str:
    """The text as one line that shows what it has."""
    return _UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """The text with its lines and tabs, and nothing else that a terminal obeys."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
