"""Where the calls of a slot differ: in what, and which are the odd ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ddpsim.reports.document import Call, Run

_ASPECTS: tuple[Callable[[Call], str], ...] = (
    lambda call: call.operation,
    lambda call: call.signature,
    lambda call: call.origin,
)
"""What calls may differ in, the most telling first."""


class Differing(NamedTuple):
    """A call of a slot whose calls differ."""

    text: str
    """What it has where others have something else, in a word or two."""
    is_odd: bool


def differing_calls(run: Run) -> dict[int, Differing]:
    """The calls of slots whose calls differ, by the events that issued them.

    The odd ones are those of the ranks that the finding names; if it names none of them, every call is odd.
    """
    found: dict[int, Differing] = {}
    for finding in run.findings:
        for index in finding.slots if finding.is_mismatch else ():
            issues = run.slots[index].issues
            culprits = set(finding.ranks)
            odd = {issue for issue in issues if run.events[issue].rank in culprits} or set(issues)
            aspect = _aspect([run.issued(issue) for issue in issues])
            for issue in issues:
                found.setdefault(issue, Differing(_word(run.issued(issue), aspect), issue in odd))
    return found


def _aspect(calls: list[Call]) -> Callable[[Call], str]:
    """The first thing that not all of them agree in."""
    return next((aspect for aspect in _ASPECTS if len({aspect(call) for call in calls}) > 1), _ASPECTS[0])


def _word(call: Call, aspect: Callable[[Call], str]) -> str:
    """What a call has of it; an operation of DDP with what it is for, which tells more than its name."""
    text = aspect(call) or "the program's own"
    return f"{text} {call.purpose}".rstrip() if aspect is _ASPECTS[0] else text
