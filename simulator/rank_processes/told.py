"""What ranks tell besides their requests: of their calls, of tensors of calls in flight, and of their replicas."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.attribution.wrapper import WrapperKey
from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.hazards import ReadEarly
from ddpsim.simulator.hazards.call_hazards import CallHazards
from ddpsim.simulator.rank_processes.messages import (
    ChangedInFlight,
    Post,
    ReadInFlight,
    ReplicaMoved,
    ReplicaSeen,
    ReplicasLeft,
)
from ddpsim.simulator.replicas.replica_judge import ReplicaJudge
from ddpsim.simulator.verdict import Finding

Telling = ReplicaMoved | ReplicaSeen | ReplicasLeft | ChangedInFlight | ReadInFlight
"""Messages that are noted, and change nothing."""


class Told:
    """In one execution."""

    def __init__(self, world_size: int) -> None:
        self.hazards = CallHazards(world_size)
        self._changed: list[Call] = []
        """Those whose tensors their owner changed before it had waited."""
        self._read: list[ReadEarly] = []
        """Those whose tensors their owner read before it had waited."""
        self._shared: list[Call] = []
        """Those that share memory with one in flight."""
        self._steps: dict[tuple[str, int], int] = {}
        """The latest step of each wrapper, by the label of its group and its number there."""
        replicas: dict[WrapperKey, dict[int, ReplicaMoved]] = {}
        self._replicas = replicas
        """Where each wrapper stands on each rank that has told."""
        self.judge = ReplicaJudge(lambda key: tuple(replicas.get(key, {}).values()))  # which does not keep us alive

    def note(self, message: Telling) -> None:
        """A rank has told it."""
        if isinstance(message, ReplicaMoved):
            self._replicas.setdefault(message.key, {})[message.rank] = message
        elif isinstance(message, ReplicaSeen):
            self.judge.look(message.look)
        elif isinstance(message, ReplicasLeft):
            self.judge.returned(message.rank, message.left, message.exchanged)
        elif isinstance(message, ChangedInFlight):
            (self._shared if message.by_call else self._changed).append(message.call)
        else:
            self._read.append(message.read)

    def posted(self, message: Post, thread: int) -> None:
        """A thread of a rank has made a call."""
        call, origin = message.call, message.call.origin
        if origin.wrapper is not None and origin.step is not None:
            wrapper = call.group, origin.wrapper
            self._steps[wrapper] = max(origin.step, self._steps.get(wrapper, 0))
        self.hazards.issued.append((call, thread))
        for name in message.names:
            self.hazards.name(call, name)

    def latest_step(self, group: str, wrapper: int) -> int:
        """The latest that a rank has told; 0 if none has."""
        return self._steps.get((group, wrapper), 0)

    def hazards_found(self, unwaited: Sequence[Call]) -> Sequence[Finding]:
        """All hazards of the run."""
        return self.hazards.findings(unwaited=unwaited, changed=self._changed, shared=self._shared, read=self._read)
