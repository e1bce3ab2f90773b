"""Reduces the lanes of many ranks: ranks that did the same share a lane, and the least important lanes are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from ddpsim.reports.document import Run
from ddpsim.reports.layout.lanes import EventMark, Lanes, MissingCall, PlacedCall, WaitBar, lanes_of

InLane = TypeVar("InLane", PlacedCall, EventMark, WaitBar, MissingCall)

LARGEST = 64
"""The largest number of lanes (rows of ranks) on a page."""


def shown_lanes(run: Run, *, largest: int = LARGEST) -> Lanes:
    """Return at most `largest` lanes of a run. If there are more, ranks that did the same share a lane.

    If there are still too many, lanes of blamed ranks are kept first, then lanes with a missing call, lanes of waiting
    ranks, and the lowest ranks.
    """
    lanes = lanes_of(run)
    if len(lanes.lanes) <= largest:
        return lanes
    classes = _group_equal_lanes(run, lanes)
    kept = sorted(sorted(classes, key=lambda lane: _importance(lanes, lane))[:largest])
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


def _importance(lanes: Lanes, lane: int) -> tuple[bool, bool, bool, int]:
    """Return the sort key of a lane's importance: unimportant lanes are left out first; False means important."""
    shown = lanes.lanes[lane]
    is_missed = any(each.lane == lane for each in lanes.missing)
    return not shown.is_culprit, not is_missed, shown.end != "waiting", lane


def _keep_lanes(lanes: Lanes, kept: dict[int, tuple[int, ...]], left_out: int) -> Lanes:
    """Return the picture with only the kept lanes; each lane stands for all ranks with an equal lane."""
    new = {lane: index for index, lane in enumerate(kept)}

    def moved(things: tuple[InLane, ...]) -> tuple[InLane, ...]:
        return tuple(each._replace(lane=new[each.lane]) for each in things if each.lane in new)

    return Lanes(
        lanes=tuple(replace(lanes.lanes[lane], ranks=ranks) for lane, ranks in kept.items()),
        items=moved(lanes.items),
        marks=moved(lanes.marks),
        bars=moved(lanes.bars),
        missing=moved(lanes.missing),
        columns=lanes.columns,
        left_out=left_out,
    )
