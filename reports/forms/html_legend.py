"""Finds the signs that the lanes of a run contain, for the legend of the HTML page."""

from __future__ import annotations

from ddpsim.reports.document import MARKS, Run
from ddpsim.reports.forms.page_data import FAMILIES, colours_of, family_of
from ddpsim.reports.layout.code_lines import SIDES
from ddpsim.reports.layout.mismatches import differing_calls
from ddpsim.simulator.events import EventKind


def signs_of(run: Run) -> frozenset[str]:
    """Return the names of the signs that occur: families of calls, kinds of marks, and highlights."""
    issued = [run.calls[event.call] for event in run.events if event.kind is EventKind.ISSUE and event.call is not None]
    kinds = {event.kind.value for event in run.events if event.kind in MARKS}
    differing = differing_calls(run).values()
    waiting = {run.events[issue].rank for slot in run.roots for issue in run.slots[slot].issues}
    states = {
        "bucket": any(call.bucket is not None for call in issued),
        "shadow": any(call.is_shadow for call in issued),
        "differs": any(each.is_odd and each.side < 0 for each in differing),
        "others": any(not each.is_odd for each in differing),
        **{
            f"side{side}": any(each.side % SIDES == side for each in differing if each.side >= 0)
            for side in range(SIDES)
        },
        "waits": bool(run.waiting),
        "blamed": not run.culprits.isdisjoint(waiting),
    }
    families = {FAMILIES[family_of(call)] for call in issued}
    signs = families | kinds | {name for name, occurs in states.items() if occurs}
    return frozenset(signs | {f"slot{colour}" for colour in colours_of(run).values()})
