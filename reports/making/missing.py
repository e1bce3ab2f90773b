"""Whom a call lacks that ranks wait in."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.result import Result


class Groups:
    """Who made which call, and the members of the groups, as far as calls tell them."""

    def __init__(self, result: Result) -> None:
        self._came: dict[tuple[str, int], set[int]] = {}
        """By group and sequence of a collective."""
        self._members: dict[str, set[int]] = {}
        for event in result.trace:
            if event.kind is EventKind.ISSUE and event.call is not None and not event.call.is_point_to_point:
                self._take(event.call)

    def _take(self, call: Call) -> None:
        self._came.setdefault((call.group, call.sequence), set()).add(call.rank)
        if call.signature.members is not None:
            self._members.setdefault(call.group, set()).update(call.signature.members)

    def lacking(self, call: Call, waits_for: Sequence[int]) -> tuple[int, ...]:
        """Of the ranks that a wait for this call, and maybe for others, is for: those that have to come to this one."""
        ranks = dict.fromkeys(waits_for)
        if call.is_point_to_point:
            return tuple(rank for rank in ranks if call.peer in (ANY_SOURCE, rank))
        members = self._members.get(call.group, ranks)
        came = self._came.get((call.group, call.sequence), ())
        return tuple(rank for rank in ranks if rank in members and rank not in came)
