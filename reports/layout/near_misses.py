"""Finds unmatched sends and receives of the same two ranks, and says why they do not match."""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.reports.document import Call, Run


class NearMiss(NamedTuple):
    """A send and a receive that would match if the field in the text were equal."""

    send: int
    """The index of the event that issued the send."""
    receive: int
    text: str


def near_misses(run: Run) -> tuple[NearMiss, ...]:
    """Return the pairs in the order of the sends; each call is in at most one pair."""
    single = [slot.issues[0] for slot in run.slots if slot.state == "open" and len(slot.issues) == 1]
    messages = [issue for issue in single if run.issued(issue).is_point_to_point]
    receives = [issue for issue in messages if run.issued(issue).operation == "recv"]
    found = []
    for send in (issue for issue in messages if run.issued(issue).operation != "recv"):
        for receive in receives:
            if text := _between(run, send, receive):
                found.append(NearMiss(send, receive, text))
                receives.remove(receive)
                break
    return tuple(found)


def _between(run: Run, send: int, receive: int) -> str:
    """Return what differs, such as "tag 7 ≠ tag 8"; "" if nothing differs, or they are not of the same two ranks."""
    sent, received = run.issued(send), run.issued(receive)
    if sent.peer != run.events[receive].rank or received.peer not in (run.events[send].rank, -1):
        return ""
    texts = [_differing(sent, received, "tag", ""), _differing(sent, received, "group", '"')]
    return ", ".join(filter(None, texts))


def _differing(sent: Call, received: Call, field: str, quote: str) -> str:
    one, other = getattr(sent, field), getattr(received, field)
    return "" if one == other else f"{field} {quote}{one}{quote} \N{NOT EQUAL TO} {field} {quote}{other}{quote}"
