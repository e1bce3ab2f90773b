"""Where the messages of records met: sends and receives of two ranks, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpsim.simulator.calls import Call
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


@dataclass(slots=True)
class _Channel:
    sends: list[RecordedCall] = field(default_factory=list)
    receives: list[RecordedCall] = field(default_factory=list)


def met_messages(job: Job) -> MetMessages:
    """Pair the messages between any two ranks of a group."""
    channels: dict[tuple[str, int, int], _Channel] = {}
    for record in job.records.values():
        for recorded in record.calls:
            call = recorded.call
            if not call.is_point_to_point or call.peer is None:
                continue
            if call.operation == "send":
                channels.setdefault((call.group, call.rank, call.peer), _Channel()).sends.append(recorded)
            else:
                channels.setdefault((call.group, call.peer, call.rank), _Channel()).receives.append(recorded)
    found = MetMessages()
    for (_, source, destination), channel in channels.items():
        _pair(job, source, destination, channel, found)
    return found


def _pair(job: Job, source: int, destination: int, channel: _Channel, found: MetMessages) -> None:
    sends, receives = channel.sends, channel.receives
    if any(rank not in job.records or job.records[rank].lost for rank in (source, destination)):
        sends, receives = _not_complete(sends), _not_complete(receives)  # how many came before nobody knows
    for send, receive in zip(sends, receives, strict=False):
        code = pair_disagreement(send.call, receive.call)
        if code is not None:
            found.clashes.append((send.call, receive.call, code))
            return
    paired = min(len(sends), len(receives))
    for recorded in (*_not_complete(sends[paired:]), *_not_complete(receives[paired:])):
        peer = recorded.call.peer
        assert peer is not None
        found.open_slots.append(OpenSlot((recorded.call,), (peer,)))


def _not_complete(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    return [each for each in calls if each.progress is not Progress.COMPLETE]
