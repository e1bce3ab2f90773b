"""Where the calls of a slot differ: in what, and which are the odd ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ddpsim.reports.document import Call, Run


def _origin(call: Call) -> str:
    return call.origin


_ASPECTS: tuple[Callable[[Call], str], ...] = (lambda call: call.operation, lambda call: call.signature, _origin)
"""What calls may differ in, the most telling first."""


class Differing(NamedTuple):
    """A call of a slot whose calls differ."""

    text: str
    """What it has where others have something else, in a word or two."""
    is_odd: bool
    side: int = -1
    """Which side it is on where any of them may be wrong, counted from 0 in the order of ranks; else -1."""


def differing_calls(run: Run) -> dict[int, Differing]:
    """The calls of slots whose calls differ, by the events that issued them.

    The odd ones are those of the ranks that the finding names; if it names none of them, every call is odd.
    """
    found: dict[int, Differing] = {}
    for finding in run.findings:
        has_sides = finding.is_mismatch and run.has_sides(finding)
        for index in finding.slots if finding.is_mismatch else ():
            issues = run.slots[index].issues
            culprits = set(finding.ranks)
            odd = {issue for issue in issues if run.events[issue].rank in culprits} or set(issues)
            aspect = _aspect([run.issued(issue) for issue in issues])
            words = _words([run.issued(issue) for issue in issues], aspect)
            by_rank = sorted(issues, key=lambda issue: run.events[issue].rank)
            sides = list(dict.fromkeys(aspect(run.issued(issue)) for issue in by_rank))
            for issue in issues:
                call = run.issued(issue)
                side = sides.index(aspect(call)) if has_sides else -1
                found.setdefault(issue, Differing(words[call], issue in odd, side))
    return found


def _aspect(calls: list[Call]) -> Callable[[Call], str]:
    """The first thing that not all of them agree in."""
    return next((aspect for aspect in _ASPECTS if len({aspect(call) for call in calls}) > 1), _ASPECTS[0])


def _words(calls: list[Call], aspect: Callable[[Call], str]) -> dict[Call, str]:
    """What each call has of it; an operation of DDP with what it is for, which tells more than its name.

    Of origins it is only what they are for, where that tells them apart: it says as much in a word.
    """
    purposes = {(aspect(call), call.purpose) for call in calls}
    is_plain = len({purpose for _, purpose in purposes}) == len(purposes) and all(purpose for _, purpose in purposes)
    if aspect is _origin and is_plain:
        return {call: call.purpose for call in calls}
    texts = {call: aspect(call) or "the program's own" for call in calls}
    return {call: f"{text} {call.purpose}".rstrip() if aspect is _ASPECTS[0] else text for call, text in texts.items()}
