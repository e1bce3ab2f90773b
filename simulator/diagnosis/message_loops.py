"""Finds deadlock cycles of messages that are caused by loops of different lengths on the ranks.

If all ranks of a cycle send, or all receive, the order of the calls may be wrong. But if messages of this line met
messages of the peer's line before, and the peer has left that line, then the order is right and the counts differ. The
same holds if a rank waits for a message while the others wait for that rank in the collective of a loop, which it
reached before, but less often than they did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpsim.simulator.calls import ANY_SOURCE, Call, Phase, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock_snapshot import Snapshot, WaitReading
from ddpsim.simulator.diagnosis.uneven import behind
from ddpsim.simulator.wording import Line

_OTHER = {"send": "recv", "recv": "send"}


def unequal_loops(calls: Sequence[Call], issued: Sequence[Call]) -> list[Line]:
    """Return the cause and what to try, if ranks of a cycle made unequal numbers of messages; else []."""
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


def left_for_messages(snapshot: Snapshot, reading: WaitReading) -> dict[int, Call]:
    """Return, by rank, the messages of ranks that reached a loop's collective less often than those waiting there.

    A line that sent or received before belongs to the loop itself. Callers are compared, too, because a function that
    communicates may be called outside the loop.
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
    """Return the peer's line whose messages met those of the call's line; None if there are several."""
    if call.peer in (None, ANY_SOURCE):
        return None
    own = [each for each in issued if each.rank == call.rank and _is_alike(each, call, call.operation, call.peer)]
    others = [
        each for each in issued if each.rank == call.peer and _is_alike(each, call, _OTHER[call.operation], call.rank)
    ]
    sites = {other.site for each, other in zip(own, others, strict=False) if each.site == call.site}
    return sites.pop() if len(sites) == 1 else None


def _is_alike(each: Call, call: Call, operation: str, peer: int | None) -> bool:
    """True if `each` has this operation and peer, and the call's group and tag."""
    return (each.operation, each.peer, each.group, each.tag) == (operation, peer, call.group, call.tag)


def _times(issued: Sequence[Call], rank: int, site: Site) -> str:
    count = sum(each.rank == rank and each.site == site for each in issued)
    return "once" if count == 1 else f"{count} times"
