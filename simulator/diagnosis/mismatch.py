"""Mismatch findings: calls of one slot that do not agree, with a row for each rank."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.explain import Row, heading, sites_of, table
from ddpsim.simulator.diagnosis.mismatch_causes import FIELDS, advise, advise_pair
from ddpsim.simulator.diagnosis.uneven import counts
from ddpsim.simulator.matching import agreement
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, rank_list, ranks_by


def mismatch(
    calls: Sequence[Call], code: Code, step: int | None, *, complete: bool = True, issued: Sequence[Call] = ()
) -> Finding:
    """Return the finding for calls of one slot that differ in the field of `code`; `issued` are all of the run."""
    culprits = agreement.minority(calls, code)
    lines = [*counts(calls, issued), *_tie(calls, code), *advise(calls, code, culprits)]
    return _finding(calls, code, step, culprits, lines, complete=complete)


def pair_mismatch(send: Call, receive: Call, code: Code, step: int | None) -> Finding:
    """Return the finding for a message and the receive that takes it; either rank may be wrong."""
    culprits = tuple(sorted({send.rank, receive.rank}))
    return _finding((send, receive), code, step, culprits, advise_pair(send, receive, code))


def _finding(
    calls: Sequence[Call],
    code: Code,
    step: int | None,
    culprits: tuple[int, ...],
    advice: Sequence[Line],
    *,
    complete: bool = True,
) -> Finding:
    first = calls[0]
    where = f'#{first.sequence} on group "{first.group}"'
    summary = f"calls {where} differ in {FIELDS[code]}: " + _sides(calls, code)
    rows = [Row(c.rank, str(c), c.location, _origin_text(c, code), c.thread, c.coordinates) for c in calls]
    lines: list[str | Line] = [heading("MISMATCH", code, step), *table(rows)]
    if not complete:
        lines.append(Line("note", "not every member of the group has arrived"))
    lines += advice
    return Finding(code, culprits, summary, tuple(lines), sites_of(calls, culprits), calls=tuple(calls))


def _sides(calls: Sequence[Call], code: Code) -> str:
    sides = ranks_by((call.rank, _side(call, code)) for call in calls)
    return " against ".join(f"{side} on {rank_list(ranks)}" for side, ranks in sides.items())


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
