"""Words that several forms share."""

from __future__ import annotations

import re

from ddpsim.simulator.events import EventKind

_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Control characters, changes of direction, half characters, and what is no character.

A terminal would obey some of them, and XML has no place for others.
"""


VERBS: dict[EventKind, str] = {
    EventKind.ISSUE: "issues",
    EventKind.MATCH: "completes",
    EventKind.WAIT: "waits for",
    EventKind.DONE: "goes on after",
    EventKind.STORE: "store",
    EventKind.SLEEP: "sleeps",
    EventKind.FAULT: "fault",
    EventKind.STEP: "finishes step",
    EventKind.NOTE: "",
    EventKind.RETURN: "returns",
    EventKind.RAISE: "raises",
}
"""What a rank does in an event, by its kind; what it does it to follows."""


def printable(text: str) -> str:
    """The text as one line that shows what it has."""
    return _UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """The text with its lines and tabs, and nothing else that a terminal obeys."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
