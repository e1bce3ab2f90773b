"""Makes the document of one run from its result."""

import linecache
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ddpsim.reports.document import Call, Document, Event, Finding, MatchedCalls, Rank, Run, Site, SlotState, Waiting
from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, Origin, channel_of_message, is_other_half
from ddpsim.simulator.calls import Call as IssuedCall
from ddpsim.simulator.calls import Site as CallSite
from ddpsim.simulator.errors import error_line
from ddpsim.simulator.events import Event as TraceEvent
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.imports import installed_version
from ddpsim.simulator.result import Result
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.verdict import Finding as Diagnosed
from ddpsim.simulator.waits import CallWait
from ddpsim.simulator.waits import Waiting as Waited

MOST_EVENTS = 2_000_000
"""The most events in a document; of a longer trace it has the last events, since a failure is at the end. A program
that runs until its budget is used up records more than any form can show."""


def document_of(
    result: Result,
    *,
    name: str = "",
    how: str = "",
    is_expected: bool | None = None,
    conclusion: str = "",
    seconds: float | None = None,
) -> Document:
    """Return the document of one run; the default name is the result's program, and `seconds` is wall time."""
    run = replace(run_of(result, name=name, how=how), is_expected=is_expected, conclusion=conclusion, seconds=seconds)
    return Document(run.name, (run,), environment=environment())


def run_of(result: Result, *, name: str = "", how: str = "") -> Run:
    """Return the run of a result, for a document of several runs whose outcome is not judged one by one."""
    making = _RunTables(result)
    return Run(
        name=name or result.program,
        world_size=result.world_size,
        verdict=result.verdict,
        findings=making.findings,
        text=str(result),
        how=how,
        ranks=making.rank_rows(),
        sites=tuple(map(_read_source, making.sites)),
        calls=making.calls,
        events=making.events,
        events_left_out=events_left_out(result.trace),
        slots=making.slots,
        waiting=making.waiting,
        joins=tuple(line.text for joining in result.joins for line in joining.lines),
        schedule=str(result.schedule),
        replay=result.replay,
        digest=result.trace.digest() if result.trace else "",
        virtual_seconds=result.virtual_seconds,
    )


def events_left_out(trace: Trace) -> int:
    """Return the number of events of a trace before the first that a document has."""
    return max(0, len(trace) - MOST_EVENTS)


class _RunTables:
    """Makes the tables of a run that refer to each other by index, in one pass over the events."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self.sites: dict[CallSite, int] = {}
        """The lines of the program that calls come from, in the order of first use."""
        self._calls: dict[Call, int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        """By a call of the trace without its rank: the index into the run's calls."""
        self._met = MatchedCallCollector()
        self._first = events_left_out(result.trace)
        last = islice(result.trace, self._first, None)
        self.events = tuple(self._event_row(index, event) for index, event in enumerate(last))
        self._met.number_matched_calls()
        self.calls = tuple(self._calls)
        self.findings = tuple(map(self._finding_row, result.findings))
        self.waiting = tuple(map(self._waiting_row, result.waiting))
        self.slots = self._met.matched_calls_as_values()

    def _event_row(self, index: int, event: TraceEvent) -> Event:
        self._met.process_event(index, event)
        call = None if event.call is None else self._call_index(event.call)
        return Event(event.kind, event.rank, event.choice_points, event.time, call, event.text, event.thread)

    def _call_index(self, call: IssuedCall) -> int:
        alike = call._replace(rank=0, coordinates="")
        if alike not in self._numbers:
            self._numbers[alike] = self._calls.setdefault(self._call_row(call), len(self._calls))
        return self._numbers[alike]

    def _call_row(self, call: IssuedCall) -> Call:
        origin = call.origin
        return Call(
            operation=call.operation,
            group=call.group,
            sequence=call.sequence,
            signature=str(call.signature).partition(" ")[2],
            site=self._site_index(call.site),
            caller=self._site_index(call.caller),
            origin="" if origin.is_of_program else str(origin),
            phase=_phase_text(origin),
            bucket=origin.bucket,
            parameters=origin.parameters,
            peer=call.peer,
            tag=call.tag,
            is_shadow=origin.shadow,
        )

    def _site_index(self, site: CallSite | None) -> int | None:
        """Return the index of a line of the program; None if the line is unknown."""
        return None if site is None or site == NOWHERE else self.sites.setdefault(site, len(self.sites))

    def _finding_row(self, finding: Diagnosed) -> Finding:
        if finding.code.startswith("mismatch."):
            self._met.mark_mismatched(finding.calls)
        return Finding(
            code=finding.code.value,
            verdict=finding.code.verdict,
            ranks=finding.ranks,
            summary=finding.summary,
            text=finding.body,
            sites=tuple(index for site in finding.sites if (index := self._site_index(site)) is not None),
            cycle=finding.cycle,
            slots=self._met.matched_calls_of(finding.calls),
            lines=finding.labelled,
            event=None if finding.event is None or finding.event < self._first else finding.event - self._first,
        )

    def _waiting_row(self, waited: Waited) -> Waiting:
        wait, who = waited.wait, waited.who
        text = str(wait)
        if isinstance(wait, CallWait):
            for call, missing in zip(wait.calls, waited.missing, strict=True):
                self._met.record_missing_ranks(call, missing)
            site = self._site_index(wait.calls[0].site)
            slots = self._met.matched_calls_of(wait.calls)
            return Waiting(who, text, site, slots, any_suffices=waited.any_suffices)
        return Waiting(who, text, self._site_index(wait.site), (), waited.waits_for, waited.any_suffices)

    def rank_rows(self) -> tuple[Rank, ...]:
        """Return how each rank ended."""
        ended = {
            event.rank: event.kind
            for event in self._result.trace
            if event.kind in (EventKind.RETURN, EventKind.RAISE) and not event.thread
        }
        waiting = {each.who.rank: each for each in self.waiting if not each.who.thread}
        places = {event.rank: event.call.coordinates for event in self._result.trace if event.call is not None}
        ranks = [self._rank_row(rank, ended.get(rank), waiting.get(rank)) for rank in range(self._result.world_size)]
        return tuple(replace(rank, coordinates=places.get(rank.rank, "")) for rank in ranks)

    def _rank_row(self, rank: int, ended: EventKind | None, waiting: Waiting | None) -> Rank:
        error = self._result.errors.get(rank)
        if error is not None:
            return Rank(rank, "raised", error_line(error))
        if ended is not None:
            return Rank(rank, "returned" if ended is EventKind.RETURN else "raised")
        if waiting is not None:
            return Rank(rank, "waiting", waiting.what, waiting.site)
        return Rank(rank, "stopped" if self._result.trace else "unknown")


def _phase_text(origin: Origin) -> str:
    """Return a call's purpose in a word or two, such as `activations 2` for the activations of micro-batch 2."""
    if origin.part is not None:
        return origin.part.what.replace(" of micro-batch", "").removeprefix("unit ")
    return "" if origin.is_of_program else origin.phase.value


def environment() -> dict[str, str]:
    """Return the versions of ddpsim, torch and Python, and the platform, without importing torch."""
    found = {name: text for name in ("ddpsim", "torch") if (text := installed_version(name))}
    return found | {"python": platform.python_version(), "platform": platform.system()}


_AROUND = 3
"""The number of source lines shown before a line, and after it."""
_LONGEST = 200
"""The most characters of a source line; the rest is cut."""
_TEST_MARK = re.compile(r"\s+# found here( by \w+)?$")
"""A comment in ddpsim's own scenarios, for their tests."""


def _read_source(site: CallSite) -> Site:
    """Return a line of the program with its source, read now: if the file changed since the run, its present text."""
    linecache.checkcache(site.path)
    lines = linecache.getlines(site.path)
    if not 1 <= site.line <= len(lines):
        return Site(_shown_path(site), site.line, site.function)
    first = max(1, site.line - _AROUND)
    around = lines[first - 1 : site.line + _AROUND]
    source = tuple(_TEST_MARK.sub("", line.rstrip("\r\n"))[:_LONGEST] for line in around)
    return Site(_shown_path(site), site.line, site.function, first, source)


def _shown_path(site: CallSite) -> str:
    """Return a file's path relative to the working folder, or only the file name if the file is elsewhere."""
    try:
        path = os.path.relpath(site.path)
    except ValueError:  # another drive
        return site.file
    return site.file if path.startswith(os.pardir) else path.replace(os.sep, "/")


# Calls of a collective match by group and sequence. A send matches the oldest open receive that fits, by the rule of
# simulator/matching/slots.py. If a receive accepts any source, the event names the sender.

Key = tuple[str, int, int, str]
"""Which call an event belongs to: group, sequence, rank and operation; a collective has rank -1 and operation ""."""


@dataclass(slots=True, eq=False)
class _CollectedCalls:
    group: str
    sequence: int
    issues: list[int] = field(default_factory=list)
    match: int | None = None
    is_mismatched: bool = False
    missing: tuple[int, ...] = ()
    any_suffices: bool = False

    @property
    def state(self) -> SlotState:
        return "mismatched" if self.is_mismatched else "open" if self.match is None else "matched"


class MatchedCallCollector:
    """Collects the slots of a run (each: calls that match each other), event by event."""

    def __init__(self) -> None:
        self._by_key: dict[Key, _CollectedCalls] = {}
        self._unmatched_messages: dict[tuple[str, int, int], list[IssuedCall]] = {}
        """Sends and receives that have no partner yet, by group, receiver and tag."""
        self._numbers: dict[_CollectedCalls, int] = {}

    def process_event(self, index: int, event: TraceEvent) -> None:
        """Process an event; only events that issue or complete a call matter."""
        call = event.call
        if call is None:
            return
        if event.kind is EventKind.ISSUE:
            self._by_key.setdefault(_matching_key(call), _CollectedCalls(call.group, call.sequence)).issues.append(
                index
            )
            if call.is_point_to_point:
                self._unmatched_messages.setdefault(channel_of_message(call), []).append(call)
        elif event.kind is EventKind.MATCH:
            if call.is_point_to_point and not self._pair_messages(call, event.text):
                return
            if slot := self._by_key.get(_matching_key(call)):
                slot.match = index

    def number_matched_calls(self) -> None:
        """Number the slots (rows of matching calls), after all events."""
        self._numbers = {slot: number for number, slot in enumerate(dict.fromkeys(self._by_key.values()))}

    def matched_calls_of(self, calls: Sequence[IssuedCall]) -> tuple[int, ...]:
        """Return the slots (rows of matching calls) of these calls, without repetition."""
        return tuple(self._numbers[slot] for slot in self._find_collected_calls(calls))

    def mark_mismatched(self, calls: Sequence[IssuedCall]) -> None:
        """Record that calls that match each other have different arguments."""
        for slot in self._find_collected_calls(calls):
            slot.is_mismatched = True

    def record_missing_ranks(self, call: IssuedCall, missing: tuple[int, ...]) -> None:
        """Record the ranks whose call is missing, for a call that a rank waits for."""
        for slot in self._find_collected_calls([call]):
            slot.missing = missing
            slot.any_suffices |= call.peer == ANY_SOURCE

    def matched_calls_as_values(self) -> tuple[MatchedCalls, ...]:
        """Return the slots (rows of matching calls) as values of the document."""
        return tuple(
            MatchedCalls(
                each.group, each.sequence, tuple(each.issues), each.state, each.match, each.missing, each.any_suffices
            )
            for each in self._numbers
        )

    def _find_collected_calls(self, calls: Sequence[IssuedCall]) -> dict[_CollectedCalls, None]:
        return {slot: None for call in calls if (slot := self._by_key.get(_matching_key(call)))}

    def _pair_messages(self, arrival: IssuedCall, text: str) -> bool:
        """Put the later call into the slot of its partner; return whether there is a partner."""
        halves = self._unmatched_messages.get(channel_of_message(arrival), [])
        partner = next((half for half in halves if is_other_half(half, arrival, text)), None)
        if partner is None or arrival not in halves:
            return False
        halves.remove(arrival)
        halves.remove(partner)
        own, self._by_key[_matching_key(arrival)] = (
            self._by_key[_matching_key(arrival)],
            self._by_key[_matching_key(partner)],
        )
        self._by_key[_matching_key(partner)].issues += own.issues
        return True


def _matching_key(call: IssuedCall) -> Key:
    if call.is_point_to_point:
        return call.group, call.sequence, call.rank, call.operation
    return call.group, call.sequence, -1, ""
