"""Watches a run for hazards: what passes here, and may hang or give wrong numbers elsewhere.

What is found is worded in simulator/diagnosis/hazards.py. Reading a tensor before the wait is not noticed, nor is a
change that bypasses torch's version counters (`.data`, numpy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from simulator.calls import Call, Phase, Site
from simulator.diagnosis import hazards
from simulator.matching.agreement import call_sites_differ
from simulator.runtime.rank_thread import Pending
from simulator.verdict import Finding

_TENSORS_WATCHED = 8
"""Of each call's inputs and outputs: all_gather has as many outputs as there are ranks."""

_Watched = tuple[Pending, tuple[tuple[Tensor, int], ...]]


class Hazards:
    """Watches one execution."""

    def __init__(self, world_size: int) -> None:
        self._issued: list[Call] = []
        self._in_flight: list[dict[int, _Watched]] = [{} for _ in range(world_size)]
        """The user's calls that were not waited for yet, by rank and id."""
        self._unwaited: list[Call] = []
        self._changed: list[Call] = []
        self._sites: dict[frozenset[Site], Sequence[Call]] = {}
        self._to_return = world_size

    def issued(self, pending: Pending) -> None:
        """A rank issued a call."""
        call = pending.call
        self._issued.append(call)
        if call.origin.phase is Phase.USER and call.operation != "monitored_barrier":
            self._in_flight[call.rank][id(pending)] = (pending, _versions(pending.payload))

    def settled(self, pending: Pending) -> None:
        """The owner of a call waits for it, or has found it complete: from here on the tensors are its own again."""
        watched = self._in_flight[pending.call.rank].pop(id(pending), None)
        if watched is not None and any(tensor._version != version for tensor, version in watched[1]):
            self._changed.append(pending.call)

    def slot_filled(self, calls: Sequence[Call]) -> None:
        """Calls met and agree."""
        if call_sites_differ(calls) and not any(call.origin.shadow for call in calls):
            self._sites.setdefault(frozenset(call.site for call in calls), calls)

    def rank_ended(self, rank: int) -> None:
        """A rank's program returned."""
        self._to_return -= 1
        for pending, _ in list(self._in_flight[rank].values()):
            self.settled(pending)
            self._unwaited.append(pending.call)

    def findings(self) -> Sequence[Finding]:
        """What was found."""
        order = hazards.group_order(self._issued) if not self._to_return else None  # else there is worse to tell
        return (
            *([] if order is None else [order]),
            *hazards.unwaited_work(self._unwaited),
            *hazards.tensor_in_flight(self._changed),
            *[hazards.call_site(calls) for calls in self._sites.values()],
        )


def _versions(payload: Any) -> tuple[tuple[Tensor, int], ...]:
    tensors = payload.inputs[:_TENSORS_WATCHED]
    if payload.outputs is not payload.inputs:
        tensors = [*tensors, *payload.outputs[:_TENSORS_WATCHED]]
    try:
        return tuple([(tensor, tensor._version) for tensor in tensors])
    except RuntimeError:  # inference tensors have no version
        return ()
