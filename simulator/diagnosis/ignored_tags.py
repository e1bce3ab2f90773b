"""Finds messages that reached the wrong receive because the backend ignores the tags that the program gave."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import Row, sites_of, table
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line

_Way = tuple[str, int, int]
"""Group, sender and receiver."""


def messages_exchanged(issued: Sequence[Call]) -> tuple[Finding, ...]:
    """Return a finding for the first wrong message of each pair of ranks, given all calls of a run.

    Only if both sides used the same tags equally often, in different orders. Otherwise the tags may have no meaning, as
    the backend that the program was written for ignores them.
    """
    if not any(call.ignored_tag for call in issued):
        return ()
    sends, receives = _by_way(issued, "send"), _by_way(issued, "recv")
    pairs = [(sends[way], receives[way]) for way in sends.keys() & receives.keys()]
    found = [each for each in (_first_exchanged(*pair) for pair in pairs) if each is not None]
    return tuple(_finding(*each) for each in sorted(found, key=lambda each: issued.index(each[0])))


def _by_way(issued: Sequence[Call], operation: str) -> dict[_Way, list[Call]]:
    """Return the messages by group, sender and receiver, in order; only where one has an ignored tag."""
    ways: dict[_Way, list[Call]] = {}
    for call in issued:
        if call.peer not in (None, ANY_SOURCE) and call.operation == operation:
            peer = int(call.peer or 0)
            ends = (call.rank, peer) if operation == "send" else (peer, call.rank)
            ways.setdefault((call.group, *ends), []).append(call)
    return {way: calls for way, calls in ways.items() if any(call.ignored_tag for call in calls)}


def _first_exchanged(sent: Sequence[Call], received: Sequence[Call]) -> tuple[Call, Call] | None:
    if sorted(call.ignored_tag for call in sent) != sorted(call.ignored_tag for call in received):
        return None
    pairs = zip(sent, received, strict=True)
    return next(((send, receive) for send, receive in pairs if send.ignored_tag != receive.ignored_tag), None)


def _finding(send: Call, receive: Call) -> Finding:
    culprits = tuple(sorted({send.rank, receive.rank}))
    summary = (
        f"send #{send.sequence} with tag {send.ignored_tag} on rank {send.rank} meets recv #{receive.sequence} "
        f'with tag {receive.ignored_tag} on rank {receive.rank}, group "{send.group}"'
    )
    rows = [Row(each.rank, str(each), each.location, coordinates=each.coordinates) for each in (send, receive)]
    lines: list[str | Line] = [f"MISMATCH  {Code.MISMATCH_ORIGIN}", f"  {summary}", *table(rows)]
    lines += Cause.TAGS_IGNORED.lines()
    calls = (send, receive)
    return Finding(Code.MISMATCH_ORIGIN, culprits, summary, tuple(lines), sites_of(calls, culprits), calls=calls)
