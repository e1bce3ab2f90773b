"""Marks findings that are consequences of an exception: calls that ranks made (in `finally`, say) while it unwound."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.rank_errors import done_by
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, listed, rank_list

_MAY_FOLLOW = ("mismatch.", Code.DEADLOCK_CYCLE.value, Code.DEADLOCK_MISSING_RANK.value)
"""Codes of possible consequences of an exception; deadlocks on a dead rank name the exception already."""


def led_by(findings: Sequence[Finding], errors: Mapping[int, str]) -> list[Finding]:
    """Return the findings; those caused by ranks that an exception of `errors` was unwinding say so."""
    return [_consequence(finding, errors) if _follows(finding, errors) else finding for finding in findings]


def _follows(finding: Finding, errors: Collection[int]) -> bool:
    """True if the finding is caused by calls of ranks that were unwinding an exception."""
    if not errors or not finding.code.value.startswith(_MAY_FOLLOW):
        return False
    callers = {call.rank for call in finding.calls}
    if finding.code.value.startswith("mismatch."):
        return not callers.isdisjoint(errors) and not callers.issubset(errors)
    return not set(finding.ranks).isdisjoint(errors) or (bool(callers) and callers.issubset(errors))


def _consequence(finding: Finding, errors: Mapping[int, str]) -> Finding:
    ranks = tuple(sorted({*(call.rank for call in finding.calls), *finding.ranks} & errors.keys()))
    calls = dict.fromkeys(f"{call.operation} #{call.sequence}" for call in finding.calls if call.rank in ranks)
    kinds = listed(list(dict.fromkeys(done_by(errors[rank]).partition(":")[0] for rank in ranks)))
    advice = Cause.CALLS_ON_ITS_WAY_OUT.lines(who=rank_list(ranks), operation=" and ".join(calls), fact=kinds)
    kept = [line for line in finding.lines if not (isinstance(line, Line) and line.label in {"cause", "try"})]
    return dataclasses.replace(finding, ranks=ranks, lines=(*kept, *advice))
