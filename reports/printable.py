"""Words, and escaping of control characters, for several forms."""

import re

from ddpsim.simulator.events import EventKind

_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Matches control characters, changes of text direction, surrogates, and code points that are no characters. A terminal
would obey some of them, and XML forbids others."""


VERBS: dict[EventKind, str] = {
    EventKind.ISSUE: "issues",
    EventKind.MATCH: "completes",
    EventKind.WAIT: "waits for",
    EventKind.DONE: "continues after",
    EventKind.STORE: "store",
    EventKind.SLEEP: "sleeps",
    EventKind.FAULT: "fault",
    EventKind.STEP: "finishes step",
    EventKind.NOTE: "",
    EventKind.RETURN: "returns",
    EventKind.RAISE: "raises",
}
"""For each kind of event, its verb. The verb's object, such as "all_reduce #3", follows."""


def escape_control_characters(text: str) -> str:
    """Return the text as one line; characters that a terminal would obey become escapes."""
    return _UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], text)


def escape_lines(text: str) -> str:
    """Return the text with its line breaks and tabs; other control characters become escapes."""
    return "\n".join("\t".join(map(escape_control_characters, line.split("\t"))) for line in text.split("\n"))
