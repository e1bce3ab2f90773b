"""Outcomes: what came of an execution, as a short text that is the same for all executions that came to the same.

It says the verdict and the findings with their ranks, not when things happened; so schedules that differ in nothing
that can be observed have one outcome, and it does not matter which of them was run.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ddpsim.simulator.exploration.values import text_of
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Code, Finding, Verdict
from ddpsim.simulator.wording import rank_list


class Outcome(NamedTuple):
    """What came of one execution."""

    judgement: str
    """The verdict and the findings."""
    returned: str
    """What the ranks returned, if the execution passed."""


def outcome_of(result: Result) -> Outcome:
    """The outcome of an execution."""
    judgement = "  ".join([result.verdict.value, *sorted({_finding(each) for each in _telling(result)})])
    return Outcome(judgement, text_of(result.returns) if result.verdict is Verdict.PASS else "")


def counted(outcomes: Counter[Outcome]) -> Counter[str]:
    """How often there was each outcome, by its text: what was returned is told only where executions differ in it."""
    variants = Counter(outcome.judgement for outcome in outcomes)
    return Counter(
        {
            outcome.judgement
            if variants[outcome.judgement] == 1
            else f"{outcome.judgement}  returned {outcome.returned}": n
            for outcome, n in outcomes.items()
        }
    )


def _telling(result: Result) -> list[Finding]:
    """The findings that do not depend on how far other ranks had come.

    A mismatch ends a run at once; what ranks that had nothing to do with it had raised by then is chance. So are the
    hazards of a run that did not get to its end.
    """
    mismatches = [each for each in result.findings if each.code.value.startswith("mismatch.")]
    if mismatches:
        return [each for each in result.findings if each in mismatches or each.code is Code.NONDETERMINISM]
    is_pass = result.verdict is Verdict.PASS
    return [each for each in result.findings if is_pass or not each.code.value.startswith("hazard.")]


def _finding(finding: Finding) -> str:
    return f"{finding.code} {rank_list(finding.ranks)}" if finding.ranks else str(finding.code)
