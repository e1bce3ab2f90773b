"""Outcomes: the result of an execution as a short text, equal for all executions with equal results.

An outcome has the verdict and the findings with their ranks, but no times. So equivalent schedules have the same
outcome, and it does not matter which of them was run.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ddpsim.simulator.exploration.values import text_of
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Code, Finding, Verdict
from ddpsim.simulator.wording import rank_list


class Outcome(NamedTuple):
    """The result of one execution, as text."""

    judgement: str
    """The verdict and the findings."""
    returned: str
    """The values that the ranks returned, if the execution passed."""


def outcome_of(result: Result) -> Outcome:
    """Return the outcome of an execution."""
    judgement = "  ".join([result.verdict.value, *sorted({_finding(each) for each in _telling(result)})])
    return Outcome(judgement, text_of(result.returns) if result.verdict is Verdict.PASS else "")


def counted(outcomes: Counter[Outcome]) -> Counter[str]:
    """Count outcomes by their text, which has the returned values only if executions differ in them."""
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
    """Return the findings that do not depend on the progress of other ranks.

    A mismatch ends a run at once, so errors that uninvolved ranks raised before it are chance. So are the hazards of a
    run that did not pass.
    """
    mismatches = [each for each in result.findings if each.code.value.startswith("mismatch.")]
    if mismatches:
        return [each for each in result.findings if each in mismatches or each.code is Code.NONDETERMINISM]
    is_pass = result.verdict is Verdict.PASS
    return [each for each in result.findings if is_pass or not each.code.value.startswith("hazard.")]


def _finding(finding: Finding) -> str:
    return f"{finding.code} {rank_list(finding.ranks)}" if finding.ranks else str(finding.code)
