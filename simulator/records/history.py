"""Convert recorded calls into a trace: one order in which they can have happened, without comparing clocks.

A rank continues once its earlier calls have matched. Calls that are not waited for may make all ranks wait in this
model; then each rank makes one more call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from ddpsim.simulator.calls import Call
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.records.job import Job
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.waits import CallWait, Waiting

_MOST_CALLS = 100_000
_LEAST_OF_RANK = 50

_Key = tuple[str, int, int, int]
"""Group and number; for a message: group, source, destination and its number among their messages."""


def history(job: Job, waiting: Sequence[Waiting], open_calls: Sequence[Call]) -> Trace:
    """Return a trace of the last calls of each rank, and the waiting ranks; `open_calls` have not matched."""
    # Only the last calls: the failure is at the end.
    kept = max(_LEAST_OF_RANK, _MOST_CALLS // max(len(job.records), 1))
    calls = {rank: [each.call for each in record.calls[-kept:]] for rank, record in job.records.items()}
    events = list(_events(calls, {id(call) for call in open_calls}))
    for each in waiting:
        if isinstance(each.wait, CallWait):
            events.append(Event(EventKind.WAIT, each.who.rank, len(events), 0.0, each.wait.calls[0]))
    return Trace(tuple(events))


def _events(calls: Mapping[int, Sequence[Call]], open_calls: Set[int]) -> Iterator[Event]:
    """Yield the events of the calls in an order in which they can have happened."""
    keys = {rank: _keys(own) for rank, own in calls.items()}
    size = Counter(key for own in keys.values() for key in own)
    is_open = {
        key for rank, own in keys.items() for call, key in zip(calls[rank], own, strict=True) if id(call) in open_calls
    }
    here: Counter[_Key] = Counter()
    place = dict.fromkeys(calls, 0)
    step = 0
    moves = [rank for rank in calls if calls[rank]]
    while moves:
        for rank in moves:
            call, key = calls[rank][place[rank]], keys[rank][place[rank]]
            place[rank] += 1
            here[key] += 1
            yield Event(EventKind.ISSUE, rank, step, 0.0, call)
            if here[key] == size[key] and key not in is_open:
                yield Event(EventKind.MATCH, rank, step, 0.0, call)
            step += 1
        left = [rank for rank in calls if place[rank] < len(calls[rank])]
        free = [rank for rank in left if not place[rank] or _has_met(keys[rank][place[rank] - 1], here, size)]
        moves = free or left


def _has_met(key: _Key, here: Counter[_Key], size: Counter[_Key]) -> bool:
    return here[key] == size[key]


def _keys(calls: Sequence[Call]) -> list[_Key]:
    numbers: Counter[tuple[str, int, int]] = Counter()
    keys: list[_Key] = []
    for call in calls:
        if not call.is_point_to_point or call.peer is None:
            keys.append((call.group, call.sequence, -1, -1))
            continue
        ends = (call.rank, call.peer) if call.operation == "send" else (call.peer, call.rank)
        channel = (call.group, *ends)
        keys.append((*channel, numbers[channel]))
        numbers[channel] += 1
    return keys
