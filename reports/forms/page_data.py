"""Makes the data that the page's scripts draw: plain values for JSON, with indices into a table of texts.

Ranks that share another rank's lane, or have no lane, have no events here. The other events are then renumbered, and
`numbers` has their indices in the whole run. Growing numbers are stored as differences from the previous number.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple

from ddpsim.reports.document import Call, Event, Run, Site
from ddpsim.reports.layout.code_lines import SIDES
from ddpsim.reports.layout.folding import folds_of
from ddpsim.reports.layout.lanes import Lane, Lanes, MissingCall, PlacedCall
from ddpsim.reports.layout.mismatches import near_misses
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.operations import OPERATIONS, OperationKind, ShapeCount
from ddpsim.simulator.wording import consecutive_ranges

KINDS = {
    EventKind.ISSUE: "i",
    EventKind.MATCH: "m",
    EventKind.WAIT: "w",
    EventKind.DONE: "d",
    EventKind.STORE: "k",
    EventKind.SLEEP: "z",
    EventKind.FAULT: "f",
    EventKind.STEP: "s",
    EventKind.NOTE: "n",
    EventKind.RETURN: "r",
    EventKind.RAISE: "x",
}

STATES = {"matched": "m", "open": "o", "mismatched": "x"}

FAMILIES = ("collective", "rooted", "barrier", "message", "group")


def family_index_of(call: Call) -> int:
    """Return the index of a call's family (such as reductions) in FAMILIES."""
    row = OPERATIONS.get(call.operation)
    if row is None:  # another program made the document
        family = "collective"
    elif row.kind is OperationKind.COLLECTIVE:
        family = "barrier" if row.shapes is ShapeCount.NONE else "rooted" if row.has_root else "collective"
    else:
        family = "message" if row.kind is OperationKind.MESSAGE else "group"
    return FAMILIES.index(family)


def colours_of(run: Run) -> dict[int, int]:
    """Return a colour for each slot (matching calls) in which ranks wait forever: 0 for causes, 1 for consequences."""
    roots = run.causal_matched_calls
    return {slot: int(slot not in roots) for slot in run.calls_with_missing_ranks}


class TextTable:
    """A list of texts in which each text occurs once."""

    def __init__(self) -> None:
        self._indices: dict[str, int] = {}

    def index_of(self, text: str) -> int:
        """Return the index of a text in the table."""
        return self._indices.setdefault(text, len(self._indices))

    def all_texts(self) -> list[str]:
        """Return the texts."""
        return list(self._indices)


def page_data_of(
    run: Run,
    lanes: Lanes,
    texts: TextTable,
    *,
    marked: int | None = None,
    link_of: Callable[[Site], str] = lambda _: "",
) -> dict[str, Any]:
    """Return the data of a run as plain values for JSON. `marked` is an event that the page points at; `link_of` gives
    the address of a line of the program."""
    lane_of = {lane.who: index for index, lane in enumerate(lanes.lanes)}
    kept = [index for index, event in enumerate(run.events) if event.who in lane_of]
    number = {index: new for new, index in enumerate(kept)}
    return {
        "world": run.world_size,
        "columns": lanes.columns,
        "lanes": [_lane_data(lane, texts) for lane in lanes.lanes],
        "sites": [_site_data(site) | {"link": link_of(site)} for site in run.sites],
        "calls": _call_data(run.calls, texts),
        "events": _event_data([run.events[index] for index in kept], lane_of, texts),
        "items": _item_data(lanes.items, number, texts),
        "marks": [[mark.position, *(number[event] for event in mark.events)] for mark in lanes.marks],
        "bars": [
            [bar.start, bar.end, number[bar.wait], None if bar.done is None else number[bar.done]] for bar in lanes.bars
        ],
        "numbers": None if len(kept) == len(run.events) else _event_numbers(run, kept),
        "slots": _matched_calls_data(run, kept),
        "missing": [list(each) for each in lanes.missing if not is_arrow_without_target(run, lanes, each)],
        "near": [
            [number[each.send], number[each.receive], texts.index_of(each.text)]
            for each in near_misses(run)
            if each.send in number and each.receive in number
        ],
        "folds": list(map(list, folds_of(run, lanes, marked))),
        "marked": None if marked is None else number.get(marked),
    }


def is_arrow_without_target(run: Run, lanes: Lanes, missing: MissingCall) -> bool:
    """Return True if half of a message is missing and its rank waits elsewhere: the arrow then leads to no lane."""
    issues = run.slots[missing.slot].issues
    return bool(issues) and run.issued_call(issues[0]).is_point_to_point and lanes.lanes[missing.lane].end == "waiting"


def _lane_data(lane: Lane, texts: TextTable) -> dict[str, Any]:
    return {
        "rank": lane.who.rank,
        "ranks": consecutive_ranges(lane.ranks),
        "thread": lane.who.thread,
        "end": lane.end,
        "text": texts.index_of(lane.text),
        "culprit": lane.is_culprit,
        "coordinates": lane.coordinates,
    }


def _site_data(site: Site) -> dict[str, Any]:
    return asdict(site) | {"short": site.short, "source": remove_shared_indent(site.source)}


def _call_data(calls: Sequence[Call], texts: TextTable) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {
        "family": [family_index_of(call) for call in calls],
        "parameters": [[texts.index_of(name) for name in call.parameters] for call in calls],
        "shadow": [int(call.is_shadow) for call in calls],
    }
    for name in ("operation", "group", "signature", "origin", "purpose"):
        columns[name] = [texts.index_of(getattr(call, name)) for call in calls]
    for name in ("sequence", "site", "caller", "bucket", "peer", "tag"):
        columns[name] = [getattr(call, name) for call in calls]
    return {name: _pack_column(column) for name, column in columns.items()}


def _pack_column(column: list[Any]) -> list[Any] | dict[str, Any]:
    """Return a column of values; if all are equal, return one value with a count."""
    if len(column) > 1 and all(value == column[0] for value in column):
        return {"each": column[0], "count": len(column)}
    return column


def _event_data(events: Sequence[Event], lane_of: Mapping[RankOrThread, int], texts: TextTable) -> dict[str, Any]:
    """Return the data of the shown events. Text and time are sparse: few events have text, and time seldom changes."""
    times = [(index, event.time) for index, event in enumerate(events)]
    return {
        "kind": "".join(KINDS[event.kind] for event in events),
        "lane": [lane_of[event.who] for event in events],
        "step": _differences_of_neighbours([event.step for event in events]),
        "call": [-1 if event.call is None else event.call for event in events],
        "text": [[index, texts.index_of(event.text)] for index, event in enumerate(events) if event.text],
        "time": [each for each, (_, before) in zip(times, [(0, 0.0), *times], strict=False) if each[1] != before],
    }


def _item_data(items: Sequence[PlacedCall], number: Mapping[int, int], texts: TextTable) -> dict[str, Any]:
    return {
        "event": _differences_of_neighbours([number[item.event] for item in items]),
        "slot": [item.slot for item in items],
        "column": [item.column for item in items],
        "beside": [[index, texts.index_of(item.beside)] for index, item in enumerate(items) if item.beside],
        "odd": [[index, texts.index_of(item.odd)] for index, item in enumerate(items) if item.odd],
        "side": [[index, item.side % SIDES] for index, item in enumerate(items) if item.side >= 0],
    }


def _event_numbers(run: Run, kept: Sequence[int]) -> dict[str, Any]:
    """Return the indices, in the whole run, of the shown events and of the events at which calls matched."""
    return {
        "event": _differences_of_neighbours(kept),
        "match": [-1 if slot.match is None else slot.match for slot in run.slots],
        "all": len(run.events),
    }


def _matched_calls_data(run: Run, kept: Sequence[int]) -> dict[str, Any]:
    """Return state and ranks of each slot (matching calls), and the shown event at or after which it matched."""
    sets: dict[tuple[int, ...], int] = {}
    ranks = [sets.setdefault(tuple(sorted(run.events[i].rank for i in slot.issues)), len(sets)) for slot in run.slots]
    return {
        "state": "".join(STATES[slot.state] for slot in run.slots),
        "match": [-1 if slot.match is None else bisect_left(kept, slot.match) for slot in run.slots],
        "size": [len(slot.issues) for slot in run.slots],
        "sets": [consecutive_ranges(each) for each in sets],
        "ranks": _pack_column(ranks),
        "missing": {
            str(index): consecutive_ranges(slot.missing) for index, slot in enumerate(run.slots) if slot.missing
        },
        "any": [index for index, slot in enumerate(run.slots) if slot.any_suffices],
        "colours": {str(slot): colour for slot, colour in colours_of(run).items()},
    }


def _differences_of_neighbours(values: Sequence[int]) -> list[int]:
    return [value - before for before, value in pairwise([0, *values])]


class SourceLine(NamedTuple):
    """A line of an excerpt."""

    number: int
    text: str
    is_marked: bool


def source_excerpt(site: Site, around: int = 1) -> tuple[SourceLine, ...]:
    """Return a line of the program with up to `around` lines before and after it; () if its file could not be read."""
    numbered = [
        (site.first + offset, text)
        for offset, text in enumerate(site.source)
        if abs(site.first + offset - site.line) <= around
    ]
    while numbered and not numbered[0][1].strip() and numbered[0][0] < site.line:
        del numbered[0]
    while numbered and not numbered[-1][1].strip() and numbered[-1][0] > site.line:
        del numbered[-1]
    texts = remove_shared_indent([text for _, text in numbered])
    return tuple(
        SourceLine(number, text, number == site.line) for (number, _), text in zip(numbered, texts, strict=True)
    )


def remove_shared_indent(lines: Sequence[str]) -> list[str]:
    """Return the lines without the indentation that all of them share."""
    written = [line for line in lines if line.strip()]
    shared = 0
    while written and len(found := {line[: shared + 1] for line in written}) == 1 and found.pop().isspace():
        shared += 1
    return [line[shared:] for line in lines]
