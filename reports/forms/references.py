"""Checks that the indices in a document refer to existing rows, since a file may have been edited by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddpsim.reports.document import Document, Exploration, Run
from ddpsim.simulator.events import EventKind


def first_broken(document: Document) -> str:
    """Return the first invalid reference, such as "runs[0].events[3] names call 7 of 5"; "" if all are valid."""
    if not document.runs and document.exploration is None:
        return "it has no run"
    for index, run in enumerate(document.runs):
        for problem in _in_run(run):
            return f"runs[{index}].{problem}"
    if document.exploration is not None:
        return next(_in_exploration(document.exploration, document.runs), "")
    return ""


def _in_run(run: Run) -> Iterator[str]:
    if run.world_size < 1:
        yield f"world_size is {run.world_size}, expected at least 1"
    if tuple(rank.rank for rank in run.ranks) != tuple(range(len(run.ranks))) or len(run.ranks) != run.world_size:
        yield f"ranks are {len(run.ranks)}, expected one for each of {run.world_size} in order"
    sites, calls, events, slots = len(run.sites), len(run.calls), len(run.events), len(run.slots)
    ranks = run.world_size
    for index, call in enumerate(run.calls):
        yield from _outside(f"calls[{index}]", "site", [call.site, call.caller], sites)
    for index, event in enumerate(run.events):
        yield from _outside(f"events[{index}]", "call", [event.call], calls)
        yield from _outside(f"events[{index}]", "rank", [event.rank], ranks)
    told = {slot for finding in run.findings if finding.is_mismatch for slot in finding.slots}
    for index, slot in enumerate(run.slots):
        if slot.state == "mismatched" and index not in told:
            yield f"slots[{index}] is mismatched, but no finding is about it"
        yield from _outside(f"slots[{index}]", "event", [*slot.issues, slot.match], events)
        yield from _outside(f"slots[{index}]", "rank", slot.missing, ranks)
        yield from (
            f"slots[{index}] names event {each}, which issues no call"
            for each in slot.issues
            if run.events[each].kind is not EventKind.ISSUE or run.events[each].call is None
        )
    for index, waiting in enumerate(run.waiting):
        where = f"waiting[{index}]"
        yield from _outside(where, "rank", [waiting.who.rank, *(who.rank for who in waiting.waits_for)], ranks)
        yield from _outside(where, "site", [waiting.site], sites)
        yield from _outside(where, "slot", waiting.slots, slots)
    for index, finding in enumerate(run.findings):
        yield from _outside(f"findings[{index}]", "rank", [*finding.ranks, *finding.cycle], ranks)
        yield from _outside(f"findings[{index}]", "site", finding.sites, sites)
        yield from _outside(f"findings[{index}]", "slot", finding.slots, slots)
    for rank in run.ranks:
        yield from _outside(f"ranks[{rank.rank}]", "site", [rank.site], sites)


def _in_exploration(exploration: Exploration, runs: tuple[Run, ...]) -> Iterator[str]:
    yield from _outside("exploration", "run", [exploration.failing, exploration.passing], len(runs))
    difference = exploration.difference
    if difference is None:
        return
    for run, event in ((exploration.failing, difference.failing), (exploration.passing, difference.passing)):
        if run is None:
            yield "exploration.difference compares runs that do not exist"
            return
        yield from _outside("exploration.difference", "event", [event], len(runs[run].events))


def _outside(where: str, what: str, indices: Iterable[int | None], count: int) -> Iterator[str]:
    for index in indices:
        if index is not None and not 0 <= index < count:
            yield f"{where} names {what} {index} of {count}"
