"""Where the messages of records met: sends and receives of two ranks, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.diagnosis.standstill import OpenSlot
from ddpsim.simulator.matching.agreement import pair_disagreement
from ddpsim.simulator.records.job import Job
from ddpsim.simulator.records.record import Progress, RecordedCall
from ddpsim.simulator.verdict import Code


@dataclass(slots=True)
class MetMessages:
    """What became of the messages of a job."""

    clashes: list[tuple[Call, Call, Code]] = field(default_factory=list)
    """A send and its receive; between two ranks of a group the first."""
    open_slots: list[OpenSlot] = field(default_factory=list)
    stalled: list[tuple[Call, ...]] = field(default_factory=list)
    """Messages that met and did not complete; between two ranks of a group the first."""
    count: int = 0
    """How many were compared."""


@dataclass(slots=True)
class _Channel:
    sends: list[RecordedCall] = field(default_factory=list)
    receives: list[RecordedCall] = field(default_factory=list)


def met_messages(job: Job) -> MetMessages:
    """Pair the messages between any two ranks of a group."""
    found = MetMessages()
    channels: dict[tuple[str, int, int], _Channel] = {}
    for record in job.records.values():
        for index in record.course.messages:
            recorded = record.calls[index]
            call = recorded.call
            assert call.peer is not None
            if call.peer == ANY_SOURCE:
                _add_of_any(job, recorded, found)
            elif call.operation == "send":
                channels.setdefault((call.group, call.rank, call.peer), _Channel()).sends.append(recorded)
            else:
                channels.setdefault((call.group, call.peer, call.rank), _Channel()).receives.append(recorded)
    for (_, source, destination), channel in channels.items():
        _pair(job, source, destination, channel, found)
    return found


def _add_of_any(job: Job, receive: RecordedCall, found: MetMessages) -> None:
    """A receive from whoever sends: which message it took no record says, so only one that is open tells something."""
    if receive.progress is Progress.UNFINISHED:
        others = tuple(rank for rank in job.members[receive.call.group] if rank != receive.call.rank)
        found.open_slots.append(OpenSlot((receive.call,), others, any_suffices=True))


def _pair(job: Job, source: int, destination: int, channel: _Channel, found: MetMessages) -> None:
    sends, receives = channel.sends, channel.receives
    if any(rank not in job.records or job.records[rank].lost for rank in (source, destination)):
        sends, receives = _not_complete(sends), _not_complete(receives)  # how many came before nobody knows
    for send, receive in zip(sends, receives, strict=False):
        found.count += 1
        code = pair_disagreement(send.call, receive.call)
        if code is not None:
            found.clashes.append((send.call, receive.call, code))
            return
    met = zip(_not_complete(sends), _not_complete(receives), strict=False)
    stalled = next((pair for pair in met if Progress.UNFINISHED in (pair[0].progress, pair[1].progress)), None)
    if stalled is not None:
        found.stalled.append((stalled[0].call, stalled[1].call))
    paired = min(len(sends), len(receives))
    for recorded in (*_not_complete(sends[paired:]), *_not_complete(receives[paired:])):
        peer = recorded.call.peer
        assert peer is not None
        found.open_slots.append(OpenSlot((recorded.call,), (peer,)))


def _not_complete(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    return [each for each in calls if each.progress is not Progress.COMPLETE]
