"""Finds what differs between calls that match each other, and which of the calls differ from the others."""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from ddpsim.reports.document import Call, Run

_ORIGIN = attrgetter("origin")
_ASPECTS: tuple[Callable[[Call], str], ...] = (attrgetter("operation"), attrgetter("signature"), _ORIGIN)
"""The properties in which matched calls may differ, the most important first."""


class DifferingCall(NamedTuple):
    """A call that matches calls with other arguments."""

    text: str
    """The call's value of the property that differs, in a word or two."""
    is_odd: bool
    side: int = -1
    """If any call may be wrong: the number of the set of calls with this value, in the order of ranks; else -1."""


def differing_calls(run: Run) -> dict[int, DifferingCall]:
    """Return calls that match each other but differ, by the issuing event; odd are those of blamed ranks, or all."""
    found: dict[int, DifferingCall] = {}
    for finding in run.findings:
        has_sides = finding.is_mismatch and run.has_sides(finding)
        for index in finding.slots if finding.is_mismatch else ():
            issues = run.slots[index].issues
            culprits = set(finding.ranks)
            odd = {issue for issue in issues if run.events[issue].rank in culprits} or set(issues)
            calls = [run.issued_call(issue) for issue in issues]
            aspect = next((each for each in _ASPECTS if len(set(map(each, calls))) > 1), _ASPECTS[0])
            words = _aspect_texts(calls, aspect)
            by_rank = sorted(issues, key=lambda issue: run.events[issue].rank)
            sides = list(dict.fromkeys(aspect(run.issued_call(issue)) for issue in by_rank))
            for issue in issues:
                call = run.issued_call(issue)
                side = sides.index(aspect(call)) if has_sides else -1
                found.setdefault(issue, DifferingCall(words[call], issue in odd, side))
    return found


def _aspect_texts(calls: list[Call], aspect: Callable[[Call], str]) -> dict[Call, str]:
    """Return, for each call, its value of the property as text; a call's purpose in DDP is named as well, or alone."""
    purposes = {(aspect(call), call.purpose) for call in calls}
    is_plain = len({purpose for _, purpose in purposes}) == len(purposes) and all(purpose for _, purpose in purposes)
    if aspect is _ORIGIN and is_plain:
        return {call: call.purpose for call in calls}
    texts = {call: aspect(call) or "the program itself" for call in calls}
    return {call: f"{text} {call.purpose}".rstrip() if aspect is _ASPECTS[0] else text for call, text in texts.items()}


class NearMiss(NamedTuple):
    """A send and a receive that would match if one field were equal: its text names the field."""

    send: int
    """The index of the event that issued the send."""
    receive: int
    text: str


def near_misses(run: Run) -> tuple[NearMiss, ...]:
    """Return pairs of a send and a receive that nearly match, in order of the sends; no call is in two pairs."""
    single = [slot.issues[0] for slot in run.slots if slot.state == "open" and len(slot.issues) == 1]
    messages = [issue for issue in single if run.issued_call(issue).is_point_to_point]
    receives = [issue for issue in messages if run.issued_call(issue).operation == "recv"]
    found = []
    for send in (issue for issue in messages if run.issued_call(issue).operation != "recv"):
        for receive in receives:
            if text := _difference_of_messages(run, send, receive):
                found.append(NearMiss(send, receive, text))
                receives.remove(receive)
                break
    return tuple(found)


def _difference_of_messages(run: Run, send: int, receive: int) -> str:
    """Return what differs, such as "tag 7 ≠ tag 8"; "" if nothing does, or if the ranks are other pairs."""
    sent, received = run.issued_call(send), run.issued_call(receive)
    if sent.peer != run.events[receive].rank or received.peer not in (run.events[send].rank, -1):
        return ""
    pairs = [(f"tag {each.tag}", f'group "{each.group}"') for each in (sent, received)]
    return ", ".join(f"{one} \N{NOT EQUAL TO} {other}" for one, other in zip(*pairs, strict=True) if one != other)
