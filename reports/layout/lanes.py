"""Computes the lanes of a run: a row for each rank and each thread, with columns for the order of calls.

Renderers draw the positions. If there are many ranks, those that did the same share a lane, and the least important
lanes are left out (`shown_lanes`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from ddpsim.reports.document import End, Event, Rank, Run
from ddpsim.reports.layout.columns import Columns, columns_of
from ddpsim.reports.layout.mismatches import DifferingCall, differing_calls
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import THREAD_ENDED, THREAD_RAISED, EventKind
from ddpsim.simulator.wording import rank_list

_ALIKE = DifferingCall("", is_odd=False)


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane (row of the picture): one rank, several ranks that did the same, or a thread."""

    who: RankOrThread
    """The rank or thread whose calls the lane shows."""
    ranks: tuple[int, ...]
    """All ranks that the lane stands for."""
    end: End
    text: str
    """The error that the rank raised, or what it waits for."""
    is_culprit: bool = False
    coordinates: str = ""
    """The rank's position in the program's device mesh."""

    @property
    def name(self) -> str:
        """The ranks or the thread of the lane, as text."""
        return f"rank {self.who.rank}, thread {self.who.thread}" if self.who.thread else rank_list(self.ranks)


class PlacedCall(NamedTuple):
    """A call with its position in the picture."""

    event: int
    """The index of the event that issued the call."""
    lane: int
    call: int
    slot: int
    column: int
    arrival: int
    """The column at which the rank reached the call; the rank waited from there if `column` is further right."""
    odd: str = ""
    """What differs, if this call differs from the calls that match it."""
    beside: str = ""
    """This call's value for an argument in which a matching call differs."""
    side: int = -1
    """If matched calls differ and any may be wrong: the number of the set of ranks with this value; else -1."""


class EventMark(NamedTuple):
    """A sign for an event that is no call, such as a step or the end of a rank; events of one kind may share it."""

    events: tuple[int, ...]
    lane: int
    position: float
    """The sign's position, between columns."""


class WaitBar(NamedTuple):
    """A wait for a rank that came later, drawn as a bar in the lane."""

    lane: int
    start: float
    end: float | None
    """The bar's end; None if the wait never ended, so the bar reaches the right edge."""
    wait: int
    """Index of the event that began the wait."""
    done: int | None
    """Index of the event that ended the wait; for a stopped rank, of the event that began it."""


class MissingCall(NamedTuple):
    """The position of a call that never came."""

    lane: int
    column: int
    slot: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """The positions of all that a renderer draws. Calls and signs are in the order of their events."""

    lanes: tuple[Lane, ...]
    items: tuple[PlacedCall, ...]
    marks: tuple[EventMark, ...]
    bars: tuple[WaitBar, ...]
    missing: tuple[MissingCall, ...]
    columns: int
    left_out: int = 0
    """The number of lanes that are not shown (`shown_lanes`)."""

    @property
    def is_shared(self) -> bool:
        """True if a lane stands for several ranks."""
        return any(len(lane.ranks) > 1 for lane in self.lanes)


def lanes_of(run: Run) -> Lanes:
    """Return the lanes of a run, one for each rank and each thread. A run without a trace has no calls in them."""
    threads = {event.who for event in run.events if event.thread}
    whose = {who: lane for lane, who in enumerate(sorted({*map(RankOrThread, range(run.world_size)), *threads}))}
    lane_of = [whose[event.who] for event in run.events]
    columns = columns_of(run, whose)
    items = _place_calls(run, lane_of, columns)
    walk = _MarksAndBars(run, lane_of, items)
    missing = _place_missing_calls(run, whose, items, columns)
    rightmost = max([*(each.column for each in items), *(each.column for each in missing)], default=-1)
    return Lanes(_make_lanes(run, whose), items, walk.marks(), walk.bars(), missing, rightmost + 1)


def _make_lanes(run: Run, whose: dict[RankOrThread, int]) -> tuple[Lane, ...]:
    culprits = run.culprits
    threads = _thread_ends(run)
    ended = {rank.rank: rank for rank in run.ranks}
    waiting = {each.who: each.what for each in run.waiting}
    lanes = []
    for who in whose:
        if who in waiting and who.thread:
            lanes.append(Lane(who, (who.rank,), "waiting", waiting[who]))
        elif who.thread:
            lanes.append(Lane(who, (who.rank,), *threads.get(who, ("stopped", ""))))
        else:
            rank = ended.get(who.rank, Rank(who.rank, "unknown"))
            lanes.append(Lane(who, (who.rank,), rank.end, rank.text, who.rank in culprits, rank.coordinates))
    return tuple(lanes)


def _thread_ends(run: Run) -> dict[RankOrThread, tuple[End, str]]:
    ends: dict[RankOrThread, tuple[End, str]] = {}
    for event in run.events:
        if event.kind is not EventKind.NOTE or not event.thread:
            continue
        if event.text.startswith(THREAD_RAISED):
            ends[event.who] = ("raised", event.text.removeprefix(THREAD_RAISED))
        elif event.text == THREAD_ENDED:
            ends.setdefault(event.who, ("returned", ""))
    return ends


def _place_calls(run: Run, lane_of: Sequence[int], columns: Columns) -> tuple[PlacedCall, ...]:
    slot_of = run.matched_calls_by_issue
    differing = differing_calls(run)
    items = []
    for index, event in enumerate(run.events):
        if event.kind is not EventKind.ISSUE or event.call is None or index not in columns.column:
            continue
        stands = columns.column[index], columns.arrival[index]
        text, is_odd, side = differing.get(index, _ALIKE)
        words = (text, "") if is_odd else ("", text)
        items.append(PlacedCall(index, lane_of[index], event.call, slot_of[index], *stands, *words, side))
    return tuple(items)


def _place_missing_calls(
    run: Run, whose: dict[RankOrThread, int], items: Sequence[PlacedCall], columns: Columns
) -> tuple[MissingCall, ...]:
    """Return positions for calls that never came: in the waiting calls' column, or a free one after the last call."""
    last: dict[int, int] = {}
    for item in items:
        last[item.lane] = max(last.get(item.lane, -1), item.column)
    column_of = {item.slot: item.column for item in items}
    found = []
    for index in run.calls_with_missing_ranks:
        for rank in run.slots[index].missing:
            lane = whose[RankOrThread(rank)]
            column = max(column_of.get(index, 0), last.get(lane, -1) + 1)
            while column != column_of.get(index) and columns.is_taken(column, lane):
                column += 1
            last[lane] = column
            found.append(MissingCall(lane, column, index))
    return tuple(found)


class _MarksAndBars:
    """Collects the signs between calls, and the waits, of each lane in one pass over the events."""

    def __init__(self, run: Run, lane_of: Sequence[int], items: Sequence[PlacedCall]) -> None:
        self._run = run
        self._partner = _partner_columns(items)
        self._open: dict[int, tuple[float, int, float]] = {}
        """By lane, the wait that has not ended: its start, its event, and the position where its bar would end."""
        self._last: dict[int, int] = {}
        self._behind: dict[int, float] = {}
        """By lane, the position after which the next sign is placed: the last call, or the end of a bar."""
        self._between: dict[int, list[list[int]]] = {}
        """By lane, the events since its last call that need a sign; consecutive events of a kind share one sign."""
        self._marks: list[EventMark] = []
        self._bars: list[WaitBar] = []
        self._issued: dict[tuple[int, int], PlacedCall] = {}
        by_event = {item.event: item for item in items}
        for index, event in enumerate(run.events):
            self._process_event(index, event, lane_of[index], by_event.get(index))
        for lane in list(self._between):
            self._place_marks(lane)

    def marks(self) -> tuple[EventMark, ...]:
        """Return the signs, in the order of their events."""
        return tuple(sorted(self._marks))

    def bars(self) -> tuple[WaitBar, ...]:
        """Return the bars of waits that ended, and of waits that never ended."""
        return (*self._bars, *self._unended_waits())

    def _unended_waits(self) -> Iterator[WaitBar]:
        """Yield bars for waits that never ended; for a stopped rank, the bar ends at the call that it waits for."""
        for_good = {each.who for each in self._run.waiting}
        for lane, (start, wait, end) in self._open.items():
            event = self._run.events[wait]
            if event.who in for_good:
                yield WaitBar(lane, start, None, wait, None)
            elif end > start:
                yield WaitBar(lane, start, end, wait, wait)

    def _process_event(self, index: int, event: Event, lane: int, item: PlacedCall | None) -> None:
        if item is not None:
            self._place_marks(lane)
            self._last[lane] = item.column
            self._behind[lane] = item.column
            self._issued[lane, item.call] = item
        elif event.kind is EventKind.WAIT:
            self._open[lane] = self._begin_wait(index, event, lane)
        elif event.kind is EventKind.DONE:
            self._end_wait(index, lane)
        elif event.kind is not EventKind.MATCH:
            self._add_mark(index, event, lane)

    def _begin_wait(self, index: int, event: Event, lane: int) -> tuple[float, int, float]:
        behind = self._behind.get(lane, -1) + 0.5
        own = None if event.call is None else self._issued.get((lane, event.call))
        if own is None:
            return behind, index, behind
        is_at_once = self._last[lane] == own.column
        return own.arrival if is_at_once else behind, index, self._partner.get(own.event, own.column)

    def _end_wait(self, index: int, lane: int) -> None:
        start, wait, end = self._open.pop(lane, (0.0, index, 0.0))
        if end <= start:
            return
        self._bars.append(WaitBar(lane, start, end, wait, index))
        if end > self._behind[lane]:
            self._place_marks(lane)
            self._behind[lane] = end

    def _add_mark(self, index: int, event: Event, lane: int) -> None:
        between = self._between.setdefault(lane, [])
        if between and self._run.events[between[-1][0]].kind == event.kind:
            between[-1].append(index)
        else:
            between.append([index])

    def _place_marks(self, lane: int) -> None:
        """Spread the signs since the last call or wait over the middle of the gap after it."""
        between = self._between.pop(lane, [])
        for number, events in enumerate(between):
            position = self._behind.get(lane, -1) + 0.3 + 0.4 * (number + 0.5) / len(between)
            self._marks.append(EventMark(tuple(events), lane, round(position, 3)))


def _partner_columns(items: Sequence[PlacedCall]) -> dict[int, int]:
    """Return, for each call, the column of the last call that matches it, where a wait for the match ends."""
    furthest: dict[int, int] = {}
    for item in items:
        furthest[item.slot] = max(furthest.get(item.slot, 0), item.column)
    return {item.event: furthest[item.slot] for item in items}


InLane = TypeVar("InLane", PlacedCall, EventMark, WaitBar, MissingCall)

LARGEST = 64
"""The largest number of lanes (rows of ranks) on a page."""
_MOST_UNSHARED = 7
_MOST_UNSHARED_OF_MESH = 16
"""With more ranks, those that did the same share a lane. In a device mesh each has its place, so more are shown."""


def shown_lanes(run: Run, *, largest: int = LARGEST) -> Lanes:
    """Return at most `largest` lanes of a run. If there are many ranks, those that did the same share a lane.

    If there are still too many lanes, those of blamed ranks are kept first, then those with a missing call, those of
    waiting ranks, and the lowest ranks.
    """
    lanes = lanes_of(run)
    is_of_mesh = any(lane.coordinates for lane in lanes.lanes)
    if run.world_size <= (_MOST_UNSHARED_OF_MESH if is_of_mesh else _MOST_UNSHARED) and len(lanes.lanes) <= largest:
        return lanes
    classes = _group_equal_lanes(run, lanes)
    kept = sorted(sorted(classes, key=lambda lane: _importance_of_lane(lanes, lane))[:largest])
    return _keep_lanes(lanes, {lane: classes[lane] for lane in kept}, len(classes) - len(kept))


def _group_equal_lanes(run: Run, lanes: Lanes) -> dict[int, tuple[int, ...]]:
    """Return the ranks of each set of equal lanes, by the first lane of the set: calls, marks and ends are equal."""
    traces = _lane_contents(run, lanes)
    found: dict[Any, int] = {}
    ranks: dict[int, list[int]] = {}
    for index, lane in enumerate(lanes.lanes):
        alike = (tuple(traces[index]), lane.end, lane.text, lane.is_culprit, lane.who.thread)
        ranks.setdefault(found.setdefault(alike, index), []).append(lane.who.rank)
    return {first: tuple(members) for first, members in ranks.items()}


def _lane_contents(run: Run, lanes: Lanes) -> list[list[Any]]:
    """Return the signs and texts of each lane, without indices of events, which differ between all lanes."""
    traces: list[list[Any]] = [[] for _ in lanes.lanes]
    for item in lanes.items:
        traces[item.lane].append((item.call, item.slot, item.column, item.odd))
    for mark in lanes.marks:
        events = [run.events[event] for event in mark.events]
        traces[mark.lane].append((mark.position, *((event.kind, event.text) for event in events)))
    for each in lanes.missing:
        traces[each.lane].append((each.column, each.slot))
    return traces


def _importance_of_lane(lanes: Lanes, lane: int) -> tuple[bool, bool, bool, int]:
    """Return the sort key of a lane's importance: unimportant lanes are left out first; False means important."""
    shown = lanes.lanes[lane]
    is_missed = any(each.lane == lane for each in lanes.missing)
    return not shown.is_culprit, not is_missed, shown.end != "waiting", lane


def _keep_lanes(lanes: Lanes, kept: dict[int, tuple[int, ...]], left_out: int) -> Lanes:
    """Return the picture with only the kept lanes; each lane stands for all ranks with an equal lane."""
    new = {lane: index for index, lane in enumerate(kept)}

    def renumber_lanes(things: tuple[InLane, ...]) -> tuple[InLane, ...]:
        return tuple(each._replace(lane=new[each.lane]) for each in things if each.lane in new)

    return Lanes(
        lanes=tuple(replace(lanes.lanes[lane], ranks=ranks) for lane, ranks in kept.items()),
        items=renumber_lanes(lanes.items),
        marks=renumber_lanes(lanes.marks),
        bars=renumber_lanes(lanes.bars),
        missing=renumber_lanes(lanes.missing),
        columns=lanes.columns,
        left_out=left_out,
    )
