"""Logical columns: where along the lanes each call stands, so that calls that met stand under each other.

A column is no time. The calls of a collective share one, the first that all its members have reached and in which
nothing else stands between them, so that the line that joins them meets no other call. The next of the group is to the
right of it, whichever thread made it. A receive stands to the right of its message, unless its rank went on before that
came. Where ranks issued the calls of two groups in different orders there are no such columns: then the calls of one of
them stand apart, and the line between them leans.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddpsim.reports.document import Run
from ddpsim.simulator.choices import Who
from ddpsim.simulator.events import EventKind

Node = int
"""Calls that share a column: the index of their slot; for one that stands alone, -1 less the index of its event."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the calls of a run, by the index of the event that issued each."""

    column: dict[int, int]
    arrival: dict[int, int]
    """Where the lane had room for the call: to the left of its column if others came later."""
    taken: tuple[int, ...] = ()
    """By column, the lanes on which, or between whose calls, something stands: a bit each."""

    def is_taken(self, column: int, lane: int) -> bool:
        """True if something of a lane in that column would seem to belong to what stands there."""
        return column < len(self.taken) and bool(self.taken[column] >> lane & 1)


def columns_of(run: Run, lane_of: Mapping[Who, int]) -> Columns:
    """The columns of the calls; `lane_of` gives everybody's lane."""
    return _Placing(_order(run, lane_of), _coming(run, lane_of)).columns()


@dataclass(slots=True)
class _Order:
    """What stands to the left of what; all of these are indices of events that issued calls."""

    nodes: dict[int, Node] = field(default_factory=dict)
    lane: dict[int, int] = field(default_factory=dict)
    before: dict[int, list[int]] = field(default_factory=dict)
    """The call before it in its lane; the one before it in its group; partners of messages that the lane waited for."""
    message: dict[int, int] = field(default_factory=dict)
    """For a receive that found its message, or waited for it at once, the send."""


def _order(run: Run, lane_of: Mapping[Who, int]) -> _Order:
    nodes, partners = _met(run)
    order = _Order(nodes)
    passed: dict[int, list[int]] = {}
    """By lane, what its next call stands to the right of."""
    issued: dict[tuple[int, int], int] = {}
    latest: dict[tuple[int, str], int] = {}
    """By rank and group, the last call that was no message."""
    for index, event in enumerate(run.events):
        lane, main = lane_of[event.who], lane_of[Who(event.rank)]
        if event.call is None:
            continue
        if event.kind is EventKind.ISSUE:
            if index not in nodes:
                continue  # it is in no slot: none of ours
            order.lane[index] = lane
            order.before[index] = passed.get(lane) or list(passed.get(main, ()))
            passed[lane] = [index]
            if not (call := run.calls[event.call]).is_point_to_point:
                before = latest.get((event.rank, call.group), index)
                if order.lane[before] != lane and before not in order.before[index]:
                    order.before[index].append(before)
                latest[event.rank, call.group] = index
            issued[lane, event.call] = index
            continue
        own = issued.get((lane, event.call))
        if own is None or own not in partners:
            continue
        is_receive = run.calls[event.call].operation == "recv"
        if event.kind is EventKind.DONE:
            passed[lane].append(partners[own])
        elif is_receive and (event.kind is EventKind.MATCH or passed[lane] == [own]):
            order.message[own] = partners[own]
    return order


def _met(run: Run) -> tuple[dict[int, Node], dict[int, int]]:
    """The node of each call, and the other half of each message that was taken."""
    nodes: dict[int, Node] = {}
    partners: dict[int, int] = {}
    for index, slot in enumerate(run.slots):
        if not slot.issues or not run.issued(slot.issues[0]).is_point_to_point:
            nodes |= dict.fromkeys(slot.issues, index)
            continue
        nodes |= {issue: -1 - issue for issue in slot.issues}
        if slot.match is not None and len(slot.issues) == 2:
            one, other = slot.issues
            partners |= {one: other, other: one}
    return nodes, partners


def _coming(run: Run, lane_of: Mapping[Who, int]) -> dict[int, list[int]]:
    """By node, the lanes in which a call is missing; not those of ranks that wait in another slot, as they stand there.

    For a message that nobody took the node is that of its only call.
    """
    open_ = [(index, run.slots[index]) for index in run.awaited]
    stuck = {run.events[issue].rank for _, slot in open_ for issue in slot.issues}
    found = {}
    for index, slot in open_:
        is_message = bool(slot.issues) and run.issued(slot.issues[0]).is_point_to_point
        lanes = [lane_of[Who(rank)] for rank in slot.missing if rank not in stuck]
        found[-1 - slot.issues[0] if is_message else index] = lanes
    return found


class _Placing:
    """Places nodes from left to right: each as soon as all that stands to the left of it is placed."""

    def __init__(self, order: _Order, coming: Mapping[Node, list[int]]) -> None:
        self._order = order
        self._coming = coming
        self._taken: list[int] = []
        self._reached: dict[int, int] = {}
        """By call, the column at which all that its node waited for was there."""
        self._members: dict[Node, list[int]] = {}
        self._blockers: dict[Node, int] = {}
        self._followers: dict[int, list[int]] = {}
        self._nodes = dict(order.nodes)
        self._column: dict[int, int] = {}
        for issue in order.before:
            self._members.setdefault(self._nodes[issue], []).append(issue)
            for other in self._others(issue):
                self._followers.setdefault(other, []).append(issue)
        for node, members in self._members.items():
            self._blockers[node] = sum(len(self._others(issue)) for issue in members)

    def columns(self) -> Columns:
        """Place all nodes."""
        ready = deque(node for node, blockers in self._blockers.items() if not blockers)
        rest = iter(self._order.before)
        while len(self._column) < len(self._order.before):
            if not ready:
                ready.append(self._stand_apart(next(issue for issue in rest if issue not in self._column)))
            self._place(ready.popleft(), ready)
        arrival = {issue: self._arrival(issue) for issue in self._order.before}
        return Columns(self._column, arrival, tuple(self._taken))

    def _arrival(self, issue: int) -> int:
        """A call that stands further right than it had to, for nothing but a free column, did not wait there."""
        room = self._room(self._order.before[issue])
        return room if room < self._reached[issue] else self._column[issue]

    def _others(self, issue: int) -> list[int]:
        message = self._order.message.get(issue)
        return self._order.before[issue] + ([] if message is None else [message])

    def _place(self, node: Node, ready: deque[Node]) -> None:
        members = self._members[node]
        others = (other for issue in members for other in self._others(issue) if other in self._column)
        reached = self._room(others)
        column = self._free(reached, [*(self._order.lane[issue] for issue in members), *self._coming.get(node, ())])
        for issue in members:
            self._reached[issue] = reached
            self._column[issue] = column
            for follower in self._followers.get(issue, ()):
                freed = self._nodes[follower]
                self._blockers[freed] -= 1
                if not self._blockers[freed] and follower not in self._column:
                    ready.append(freed)

    def _free(self, column: int, lanes: list[int]) -> int:
        """The first column from this one on with nothing between these lanes; it is taken now."""
        between = (2 << max(lanes)) - (1 << min(lanes))
        while column < len(self._taken) and self._taken[column] & between:
            column += 1
        self._taken += [0] * (column + 1 - len(self._taken))
        self._taken[column] |= between
        return column

    def _stand_apart(self, first: int) -> Node:
        """Take the node of the earliest call that is left apart, as it waits for itself; return that call's own.

        All that must be to the left of the earliest call is placed, but for a message that comes later.
        """
        members = self._members.pop(self._nodes[first])
        for issue in members:
            node = self._nodes[issue] = -1 - issue
            self._members[node] = [issue]
            self._blockers[node] = sum(other not in self._column for other in self._others(issue))
        return self._nodes[first]

    def _room(self, others: Iterable[int]) -> int:
        return 1 + max((self._column[other] for other in others), default=-1)
