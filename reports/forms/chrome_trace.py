"""Renders a Chrome trace for the Perfetto UI: ranks as processes, their groups as threads, matched calls as flows.

Its clock is logical: the index of an event counts as a microsecond. So earlier events are further left, and every call
has a width. The arguments of a call have its virtual seconds.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from ddpsim.reports.document import MARKS, Document, Event, MatchedCalls, Run
from ddpsim.reports.forms.json_form import encode_json
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import EventKind

_CLOCK = "logical: the index of each event counts as one microsecond; virtual seconds are in the arguments"
_PROGRAM = "program"
"""The name of the track for waits and marks that belong to no group."""

TraceEntry = dict[str, Any]
"""One trace event of Chrome's format."""


class _Track(NamedTuple):
    """A row of the viewer, which Chrome's format calls a thread."""

    who: RankOrThread
    group: str | None
    """The group whose calls the row shows; None for waits and marks that belong to no group."""
    number: int = 0
    """The number of the row within its group: calls that overlap without nesting need several rows."""

    @property
    def name(self) -> str:
        """The name that viewers show."""
        group = _PROGRAM if self.group is None else f'group "{self.group}"'
        thread = f', thread "{self.who.thread}"' if self.who.thread else ""
        return f"{group}{thread}{f' ({self.number + 1})' if self.number else ''}"


def to_chrome_trace(document: Document) -> bytes:
    """Render the document as a Chrome trace in JSON. Each of several runs has its own processes."""
    entries: list[TraceEntry] = []
    # A power of ten, so the last digits of a process number are the rank. Viewers take process 0 for the idle process.
    distance = max(1000, int(10 ** len(str(max((run.world_size for run in document.runs), default=0)))))
    for number, run in enumerate(document.runs, start=1):
        title = run.name if len(document.runs) > 1 else ""
        entries += _RunEntries(run, number * distance, title).all_entries()
    other = {"title": document.title, "clock": _CLOCK} | document.environment
    return encode_json({"traceEvents": entries, "displayTimeUnit": "ns", "otherData": other})


class _RunEntries:
    def __init__(self, run: Run, first: int, title: str) -> None:
        self._run = run
        self._first = first
        self._title = title
        self._threads: dict[_Track, int] = {}
        self._free_from: dict[int, int] = {}
        """For each row of the viewer, the end of its last span."""
        self._thread_of: dict[int, int] = {}
        """By the event that issued a call: the number of the call's row."""

    def all_entries(self) -> Iterator[TraceEntry]:
        """Yield spans, instants and arrows, then the names of rows."""
        for span in spans_of(self._run):
            yield self._span_entry(span)
        for index, event in enumerate(self._run.events):
            if event.kind in MARKS:
                yield self._instant_entry(index, event)
        for index, slot in enumerate(self._run.slots):
            yield from self._flow_entries(index, slot)
        yield from self._name_entries()

    def _span_entry(self, span: "Span") -> TraceEntry:
        event = self._run.events[span.start]
        track = self._free_thread(span, None if span.call is None else self._run.calls[span.call].group)
        if span.call is not None:
            self._thread_of[span.start] = track
        entry: TraceEntry = {
            "ph": "X",
            "ts": span.start,
            "dur": span.end - span.start,
            "pid": self._first + span.who.rank,
            "tid": track,
            **self._span_arguments(span, event),
        }
        return entry if span.has_ended else entry | {"cname": "terrible"}

    def _span_arguments(self, span: "Span", event: Event) -> TraceEntry:
        when = {"step": event.step, "virtual_seconds": event.time}
        if span.call is None:
            return {"name": f"waits for {event.text}", "cat": "wait", "args": when}
        call = self._run.calls[span.call]
        texts = {
            "signature": call.signature,
            "site": self._source_location(call.site),
            "called from": self._source_location(call.caller),
            "origin": call.origin,
            "parameters": ", ".join(call.parameters),
            "shadow": "for ranks that have not joined" if call.is_shadow else "",
            "state": "" if span.slot is None else self._run.slots[span.slot].state,
        }
        args = {key: text for key, text in texts.items() if text}
        return {"name": f"{call.operation} #{call.sequence}", "cat": "call", "args": args | when}

    def _source_location(self, index: int | None) -> str:
        site = None if index is None else self._run.sites[index]
        return f"{site.file}:{site.line}" if site else ""

    def _free_thread(self, span: "Span", group: str | None) -> int:
        """Return the first row of the group that is free for the whole span."""
        threads = (self._thread_number(_Track(span.who, group, number)) for number in itertools.count())
        thread = next(thread for thread in threads if self._free_from.get(thread, 0) <= span.start)
        self._free_from[thread] = span.end
        return thread

    def _thread_number(self, track: _Track) -> int:
        """Return the number of a row, unique among all ranks and above process numbers, which name main threads."""
        return self._threads.setdefault(track, (self._first + self._run.world_size) * 1000 + len(self._threads))

    def _instant_entry(self, index: int, event: Event) -> TraceEntry:
        return {
            "ph": "i",
            "s": "t",
            "ts": index,
            "pid": self._first + event.rank,
            "tid": self._thread_number(_Track(event.who, None)),
            "name": f"{event.kind.value} {event.text}".rstrip(),
            "cat": event.kind.value,
            "args": {"step": event.step, "virtual_seconds": event.time},
        }

    def _flow_entries(self, index: int, slot: MatchedCalls) -> Iterator[TraceEntry]:
        """Yield arrows between matched calls, in the order of their issue."""
        if slot.match is None or len(slot.issues) < 2:
            return
        for number, issue in enumerate(slot.issues):
            phase = "s" if number == 0 else "f" if number == len(slot.issues) - 1 else "t"
            yield {
                "ph": phase,
                "id": self._first * 1_000_000 + index,
                "ts": issue + 0.5,  # within the call
                "pid": self._first + self._run.events[issue].rank,
                "tid": self._thread_of[issue],
                "name": "matched",
                "cat": "slot",
                **({"bp": "e"} if phase == "f" else {}),
            }

    def _name_entries(self) -> Iterator[TraceEntry]:
        for rank in range(self._run.world_size):
            name = f"{self._title}: rank {rank}" if self._title else f"rank {rank}"
            yield _metadata_entry("process_name", self._first + rank, 0, {"name": name})
            yield _metadata_entry("process_sort_index", self._first + rank, 0, {"sort_index": self._first + rank})
        in_order = sorted(self._threads.items(), key=lambda each: (each[0].who, each[0].group is not None, each[1]))
        for sort_index, (track, thread) in enumerate(in_order):
            process = self._first + track.who.rank
            yield _metadata_entry("thread_name", process, thread, {"name": track.name})
            yield _metadata_entry("thread_sort_index", process, thread, {"sort_index": sort_index})


def _metadata_entry(name: str, process: int, thread: int, args: TraceEntry) -> TraceEntry:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": args}


class Span(NamedTuple):
    """The time of a call, or of a wait for something else."""

    start: int
    """Index of the event that begins the span."""
    end: int
    who: RankOrThread
    call: int | None
    """Index of the call, in the run's calls."""
    slot: int | None
    has_ended: bool


def spans_of(run: Run) -> list[Span]:
    """Return the spans of a run, sorted by their start."""
    return sorted([*_call_spans(run), *_wait_spans(run)])


def _call_spans(run: Run) -> Iterator[Span]:
    slot_of = run.matched_calls_by_issue
    waited: dict[tuple[int, int], int | None] = {}
    """By rank and call: the event that ended the rank's wait for the call; None if the wait has not ended."""
    for index, event in enumerate(run.events):
        if event.call is not None and event.kind in (EventKind.WAIT, EventKind.DONE):
            waited[event.rank, event.call] = index if event.kind is EventKind.DONE else None
    for index, event in enumerate(run.events):
        if event.kind is not EventKind.ISSUE or event.call is None:
            continue
        slot = slot_of.get(index)
        match = None if slot is None else run.slots[slot].match
        end = waited.get((event.rank, event.call), match)
        last = len(run.events) if end is None else end
        yield Span(index, last, event.who, event.call, slot, has_ended=end is not None)


def _wait_spans(run: Run) -> Iterator[Span]:
    """Yield spans for waits for the clock, the store, a lock or another thread."""
    open_: dict[RankOrThread, int] = {}
    for index, event in enumerate(run.events):
        if event.call is not None:
            continue
        if event.kind is EventKind.WAIT:
            open_[event.who] = index
        elif event.kind is EventKind.DONE and (start := open_.pop(event.who, None)) is not None:
            yield Span(start, index, event.who, None, None, has_ended=True)
    for who, start in open_.items():
        yield Span(start, len(run.events), who, None, None, has_ended=False)
