"""ddpsim as a tool: one run, or many."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.scoreboard.case import Case, loaded
from benchmarks.scoreboard.tool import Said
from ddpsim import Budget, Finding, Verdict, explore, simulate

EXECUTIONS = 200
"""Most schedules of a program that `Explored` looks at."""


class OneRun:
    """`ddpsim run`: one schedule, all findings, hazards among them."""

    name = "ddpsim run"
    at_once = 1

    def judge(self, case: Case, file: Path) -> Said:
        """Simulate it once."""
        start = time.perf_counter()
        result = simulate(loaded(file), case.size, args=(case.size,))
        return _said(result.findings, str(result), start)


class Explored:
    """`ddpsim explore`: schedules until one fails, all are covered, or the budget is used up."""

    name = "ddpsim explore"
    at_once = 1

    def judge(self, case: Case, file: Path) -> Said:
        """Explore it. A budget that ran out is no alarm."""
        start = time.perf_counter()
        budget = Budget(executions=EXECUTIONS, seconds=60)
        found = explore(loaded(file), case.size, args=(case.size,), budget=budget)
        shown = found.first_failure or found.first_pass
        findings = shown.findings if shown else ()
        text = f"{found}\n{shown}" if found.verdict is not Verdict.FAIL else str(found)
        return _said(findings, text, start)


def _said(findings: Iterable[Finding], text: str, start: float) -> Said:
    codes = frozenset(str(finding.code) for finding in findings)
    return Said(bool(codes), text, codes, time.perf_counter() - start)
