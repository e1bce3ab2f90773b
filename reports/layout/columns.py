"""Computes logical columns: the horizontal position of each call in its lane, with matched calls in one column.

A column is not a time. The calls of a collective share the first column that all its members have reached and that is
free between their lanes, so the line that joins them crosses no other call. The next call of the group is further
right, also if another thread made it. A receive is to the right of its send, unless its rank continued before the
message came. If ranks issued the calls of two groups in different orders, no such columns exist: then the calls of one
collective get different columns, and the line between them is slanted.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddpsim.reports.document import Run
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import EventKind

Node = int
"""Calls that share a column: the index of their slot, or for a single call -1 minus its event's index."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The column (horizontal position) of each call of a run, by the index of the event that issued the call."""

    column: dict[int, int]
    arrival: dict[int, int]
    """The column at which the rank reached the call: left of the call's column if other ranks came later."""
    taken: tuple[int, ...] = ()
    """By column: a bit for each lane that has a call there, or that a line between two calls crosses."""

    def is_taken(self, column: int, lane: int) -> bool:
        """Return True if a sign in this column of this lane would be misread, since the place is used."""
        return column < len(self.taken) and bool(self.taken[column] >> lane & 1)


def columns_of(run: Run, lane_of: Mapping[RankOrThread, int]) -> Columns:
    """Return the columns of a run's calls; `lane_of` has the lane (row) of each rank and thread."""
    return _ColumnPlacement(_find_call_order(run, lane_of), _lanes_of_missing_calls(run, lane_of)).place_all()


@dataclass(slots=True)
class _CallOrder:
    """Which calls must be left of which calls; numbers are indices of the events that issued the calls."""

    nodes: dict[int, Node] = field(default_factory=dict)
    lane: dict[int, int] = field(default_factory=dict)
    before: dict[int, list[int]] = field(default_factory=dict)
    """By call: the previous calls in its lane and group, and the partners of messages that its rank had waited for."""
    message: dict[int, int] = field(default_factory=dict)
    """The send of each receive whose message was there already, or for which the rank waited at once."""


def _find_call_order(run: Run, lane_of: Mapping[RankOrThread, int]) -> _CallOrder:
    nodes, partners = _nodes_and_partners(run)
    order = _CallOrder(nodes)
    passed: dict[int, list[int]] = {}
    """By lane: the calls that must be left of the next call in the lane."""
    issued: dict[tuple[int, int], int] = {}
    latest: dict[tuple[int, str], int] = {}
    """By rank and group, the latest collective."""
    for index, event in enumerate(run.events):
        if event.call is None:
            continue
        lane = lane_of[event.who]
        if event.kind is EventKind.ISSUE:
            if index not in nodes:
                continue  # it is in no slot, so it is not drawn
            order.lane[index] = lane
            order.before[index] = passed.get(lane) or list(passed.get(lane_of[RankOrThread(event.rank)], ()))
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


def _nodes_and_partners(run: Run) -> tuple[dict[int, Node], dict[int, int]]:
    """Return the column node of each call, and the partner of each matched send and receive."""
    nodes: dict[int, Node] = {}
    partners: dict[int, int] = {}
    for index, slot in enumerate(run.slots):
        if not slot.issues or not run.issued_call(slot.issues[0]).is_point_to_point:
            nodes |= dict.fromkeys(slot.issues, index)
            continue
        nodes |= {issue: -1 - issue for issue in slot.issues}
        if slot.match is not None and len(slot.issues) == 2:
            one, other = slot.issues
            partners |= {one: other, other: one}
    return nodes, partners


def _lanes_of_missing_calls(run: Run, lane_of: Mapping[RankOrThread, int]) -> dict[int, list[int]]:
    """Return, by column node, the lanes in which a call is missing, without ranks that wait in another slot."""
    open_ = [(index, run.slots[index]) for index in run.calls_with_missing_ranks]
    stuck = {run.events[issue].rank for _, slot in open_ for issue in slot.issues}
    found = {}
    for index, slot in open_:
        is_message = bool(slot.issues) and run.issued_call(slot.issues[0]).is_point_to_point
        lanes = [lane_of[RankOrThread(rank)] for rank in slot.missing if rank not in stuck]
        found[-1 - slot.issues[0] if is_message else index] = lanes
    return found


class _ColumnPlacement:
    """Assigns columns from left to right: each call once all calls that must be left of it have a column."""

    def __init__(self, order: _CallOrder, coming: Mapping[Node, list[int]]) -> None:
        self._order = order
        self._coming = coming
        self._taken: list[int] = []
        self._reached: dict[int, int] = {}
        """By call: the first column that the order of calls allows."""
        self._members: dict[Node, list[int]] = {}
        self._blockers: dict[Node, int] = {}
        self._followers: dict[int, list[int]] = {}
        self._nodes = dict(order.nodes)
        self._column: dict[int, int] = {}
        for issue in order.before:
            self._members.setdefault(self._nodes[issue], []).append(issue)
            for other in self._calls_before(issue):
                self._followers.setdefault(other, []).append(issue)
        for node, members in self._members.items():
            self._blockers[node] = sum(len(self._calls_before(issue)) for issue in members)

    def place_all(self) -> Columns:
        """Assign a column to every call."""
        ready = deque(node for node, blockers in self._blockers.items() if not blockers)
        rest = iter(self._order.before)
        while len(self._column) < len(self._order.before):
            if not ready:
                ready.append(self._split_node(next(issue for issue in rest if issue not in self._column)))
            self._place_node(ready.popleft(), ready)
        arrival = {issue: self._arrival_column(issue) for issue in self._order.before}
        return Columns(self._column, arrival, tuple(self._taken))

    def _arrival_column(self, issue: int) -> int:
        """Return the column at which a rank reached the call; a column further right for lack of room is no wait."""
        room = self._first_column_after(self._order.before[issue])
        return room if room < self._reached[issue] else self._column[issue]

    def _calls_before(self, issue: int) -> list[int]:
        message = self._order.message.get(issue)
        return self._order.before[issue] + ([] if message is None else [message])

    def _place_node(self, node: Node, ready: deque[Node]) -> None:
        members = self._members[node]
        others = (other for issue in members for other in self._calls_before(issue) if other in self._column)
        reached = self._first_column_after(others)
        column = self._take_free_column(
            reached, [*(self._order.lane[issue] for issue in members), *self._coming.get(node, ())]
        )
        for issue in members:
            self._reached[issue] = reached
            self._column[issue] = column
            for follower in self._followers.get(issue, ()):
                freed = self._nodes[follower]
                self._blockers[freed] -= 1
                if not self._blockers[freed] and follower not in self._column:
                    ready.append(freed)

    def _take_free_column(self, column: int, lanes: list[int]) -> int:
        """Return the first column, from `column` on, that is free between two lanes, and mark it as used."""
        between = (2 << max(lanes)) - (1 << min(lanes))
        while column < len(self._taken) and self._taken[column] & between:
            column += 1
        self._taken += [0] * (column + 1 - len(self._taken))
        self._taken[column] |= between
        return column

    def _split_node(self, first: int) -> Node:
        """Give matched calls separate columns, since their order has a cycle; return the earliest call's node."""
        members = self._members.pop(self._nodes[first])
        for issue in members:
            node = self._nodes[issue] = -1 - issue
            self._members[node] = [issue]
            self._blockers[node] = sum(other not in self._column for other in self._calls_before(issue))
        return self._nodes[first]

    def _first_column_after(self, others: Iterable[int]) -> int:
        return 1 + max((self._column[other] for other in others), default=-1)
