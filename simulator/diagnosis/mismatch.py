"""Mismatch findings: calls that met and do not agree, with a row for each rank, and values passed to `agree()`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import Row, against, finding_lines, minority, sites_of, table
from ddpsim.simulator.diagnosis.mismatch_causes import FIELDS, advise, advise_pair
from ddpsim.simulator.diagnosis.uneven import counts
from ddpsim.simulator.matching import agreement
from ddpsim.simulator.matching.slots import SlotTable
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, ranks_by


def mismatch(
    calls: Sequence[Call], code: Code, step: int | None, *, complete: bool = True, issued: Sequence[Call] = ()
) -> Finding:
    """Return the finding for calls of one collective that differ in the field of `code`.

    `complete` is False if members are missing; `issued` are all calls of the run.
    """
    culprits = agreement.minority(calls, code)
    lines = [] if complete else [Line("note", "not every member of the group has arrived")]
    lines += [*counts(calls, issued), *_tie(calls, code), *advise(calls, code, culprits)]
    return _finding(calls, code, step, culprits, lines)


def early_mismatches(slots: SlotTable, step: int, issued: Sequence[Call]) -> Iterator[tuple[list[Call], Finding]]:
    """Yield the calls of each collective that do not agree although members are missing, with their finding.

    Splits are not compared: that needs the calls of all members.
    """
    for slot in slots.open_slots():
        calls = list(slot.calls.values())
        code = agreement.disagreement(calls) if len(calls) > 1 else None
        if code is not None and code is not Code.MISMATCH_SPLITS:
            yield calls, mismatch(calls, code, step, complete=False, issued=issued)


def pair_mismatch(send: Call, receive: Call, code: Code, step: int | None) -> Finding:
    """Return the finding for a message and the receive that takes it; either rank may be wrong."""
    culprits = tuple(sorted({send.rank, receive.rank}))
    return _finding((send, receive), code, step, culprits, advise_pair(send, receive, code))


def _finding(
    calls: Sequence[Call], code: Code, step: int | None, culprits: tuple[int, ...], end: Sequence[Line]
) -> Finding:
    where = f'#{calls[0].sequence} on group "{calls[0].group}"'
    sides = against(ranks_by((call.rank, _side(call, code)) for call in calls))
    rows = [Row(c.rank, str(c), c.location, _origin_text(c, code), c.thread, c.coordinates) for c in calls]
    lines = finding_lines(code, table(rows), end, step=step)
    summary = f"calls {where} differ in {FIELDS[code]}: {sides}"
    return Finding(code, culprits, summary, lines, sites_of(calls, culprits), calls=tuple(calls))


def _tie(calls: Sequence[Call], code: Code) -> list[Line]:
    """Return a note if there are two sides of equally many ranks, at least two each; [] if not."""
    sizes = [len(ranks) for ranks in ranks_by((call.rank, _side(call, code)) for call in calls).values()]
    if len(sizes) != 2 or sizes[0] != sizes[1] or sizes[0] < 2:
        return []
    return [Line("note", f"a tie, {sizes[0]} ranks against {sizes[1]}: either may be wrong")]


def _side(call: Call, code: Code) -> str:
    signature = call.signature
    if code is Code.MISMATCH_OPERATION:
        return signature.operation
    if code is Code.MISMATCH_REDUCTION:
        return str(signature.reduction)
    if code is Code.MISMATCH_ROOT:
        return f"root {signature.root}"
    if code is Code.MISMATCH_DTYPE:
        return str(signature.dtype)
    if code is Code.MISMATCH_ORIGIN:
        return _origin_text(call, code)
    return str(signature)


def _origin_text(call: Call, code: Code) -> str:
    origin = call.origin
    if origin.is_programs and code is not Code.MISMATCH_ORIGIN:
        return ""
    names = f" ({', '.join(origin.parameters)})" if origin.parameters and len(origin.parameters) <= 6 else ""
    return origin.told() + names


# --- values passed to `agree()` ---------------------------------------------------------------------------------------


class AgreedValue(NamedTuple):
    """The value that one rank passed to `agree()`."""

    rank: int
    value: str
    """Equal texts for equal values."""
    site: Site


def values_differ(name: str, number: int, said: Sequence[AgreedValue], step: int) -> Finding:
    """Return the finding for call `number` of `agree(name)`, given the values of the ranks that made it."""
    said = sorted(said)
    sides = ranks_by((each.rank, each.value) for each in said)
    culprits = minority(sides.values())
    summary = f"agree({name!r}) #{number}: {against(sides)}"
    rows = [Row(each.rank, f"{name} = {each.value}", str(each.site)) for each in said]
    lines = finding_lines(Code.MISMATCH_VALUE, table(rows), Cause.VALUES_DIFFER.lines(fact=name), step=step)
    ordered = sorted(said, key=lambda each: (each.rank not in culprits, each.rank))
    sites = tuple(dict.fromkeys(each.site for each in ordered))
    return Finding(Code.MISMATCH_VALUE, culprits, summary, lines, sites)
