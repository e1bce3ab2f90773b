"""Ranks of a cycle that wait for messages because the loops of ranks are not alike.

Where all ranks of a cycle send, or all receive, they may do so in the wrong order from the start. But if messages of
one's line have met the other's before, and that one has left its line behind, the order was right and the numbers are
not. The same holds where one waits for a message of ranks that wait for it in the collective of a loop, to which it
came before, and less often than they did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpsim.simulator.calls import ANY_SOURCE, Call, Phase, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.reading import Reading
from ddpsim.simulator.diagnosis.standstill import Snapshot
from ddpsim.simulator.diagnosis.uneven import behind
from ddpsim.simulator.wording import Line

_OTHER = {"send": "recv", "recv": "send"}


def unequal_loops(calls: Sequence[Call], issued: Sequence[Call]) -> list[Line]:
    """The cause and what to try, for messages that the ranks of a cycle wait in; [] if it is another."""
    waiting = {call.rank: call for call in calls}
    for call in calls:
        there = waiting.get(call.peer) if call.peer is not None else None
        site = _met_at(call, issued)
        if there is None or site is None or site == there.site:
            continue
        mine = _times(issued, call.rank, call.site)
        theirs = _times(issued, there.rank, site)
        went_on = f"rank {there.rank} reached {_OTHER[call.operation]} at {site} {theirs} and continued at {there.site}"
        return Cause.LOOPS_OF_MESSAGES_DIFFER.lines(
            who=f"rank {call.rank}", operation=call.operation, site=str(call.site), fact=mine, usual=went_on
        )
    return []


def left_for_messages(snapshot: Snapshot, reading: Reading) -> dict[int, Call]:
    """The messages of ranks that others wait for in a loop's collective, to which they came less often; by rank.

    A message of a line that had some before is of the loop itself, and a function that communicates may be called from
    other lines than the loop's.
    """
    calls = {rank: next(iter(snapshot.ranks[rank].calls), None) for rank in reading.victims}
    waiting = [call for call in calls.values() if call is not None]
    collectives = [call for call in waiting if not call.is_point_to_point]
    lines = {_line(call) for call in collectives}
    of_loops = [each for each in snapshot.issued if each.origin.phase is not Phase.USER or _line(each) in lines]
    times = Counter((each.rank, _line(each)) for each in snapshot.issued)
    messages = {
        call.rank: call
        for call in waiting
        if call.is_point_to_point and call.rank in reading.cycle and times[call.rank, _line(call)] == 1
    }
    return {rank: messages[rank] for rank in behind(collectives, of_loops, tuple(messages))}


def _line(call: Call) -> tuple[Site, Site | None]:
    return call.site, call.caller


def _met_at(call: Call, issued: Sequence[Call]) -> Site | None:
    """The line at which the other rank has made all other halves of the messages of a call's line; None if unclear."""
    if call.peer in (None, ANY_SOURCE):
        return None
    own = [each for each in issued if each.rank == call.rank and _is_alike(each, call, call.operation, call.peer)]
    others = [
        each for each in issued if each.rank == call.peer and _is_alike(each, call, _OTHER[call.operation], call.rank)
    ]
    sites = {other.site for each, other in zip(own, others, strict=False) if each.site == call.site}
    return sites.pop() if len(sites) == 1 else None


def _is_alike(each: Call, call: Call, operation: str, peer: int | None) -> bool:
    """True if it goes the way of the messages of a call, or of what meets them."""
    return (each.operation, each.peer, each.group, each.tag) == (operation, peer, call.group, call.tag)


def _times(issued: Sequence[Call], rank: int, site: Site) -> str:
    count = sum(each.rank == rank and each.site == site for each in issued)
    return "once" if count == 1 else f"{count} times"
