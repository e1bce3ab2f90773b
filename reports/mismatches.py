"""Which calls of a slot are the odd ones, and what is different about them."""

from __future__ import annotations

from collections.abc import Callable

from reports.columns import call_of
from reports.document import Call, Run

_ASPECTS: tuple[Callable[[Call], str], ...] = (
    lambda call: call.operation,
    lambda call: call.signature,
    lambda call: call.origin,
)
"""What calls may differ in, the most telling first."""


def odd_ones(run: Run) -> dict[int, str]:
    """For each odd call of a slot whose calls differ, by its event: what is different, in a word or two.

    The odd ones are those of the ranks that the finding names; if it names none of them, or all, every call is odd.
    """
    odd: dict[int, str] = {}
    for finding in run.findings:
        for index in finding.slots if finding.code.startswith("mismatch.") else ():
            issues = run.slots[index].issues
            named = [issue for issue in issues if run.events[issue].rank in finding.ranks]
            aspect = _aspect([call_of(run, issue) for issue in issues])
            for issue in named or issues:
                odd.setdefault(issue, aspect(call_of(run, issue)))
    return odd


def _aspect(calls: list[Call]) -> Callable[[Call], str]:
    """The first thing that not all of them agree in."""
    for aspect in _ASPECTS:
        if len({aspect(call) for call in calls}) > 1:
            return lambda call: aspect(call) or "the program's own"
    return _ASPECTS[0]
