"""ddpsim as a tool: one run, or many; and torch's reader of dumps, which gets those of the simulated run."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.scoreboard.case import Case, loaded
from benchmarks.scoreboard.kinds import ORDER_NOTE
from benchmarks.scoreboard.tool import Said
from ddpsim import Budget, Finding, Verdict, explore, simulate
from ddpsim.scenarios.records.writing import RecordFolders, write_records
from tests.records.torchs_reader import told_by_torch

EXECUTIONS = 200
"""Most schedules of a program that `Explored` looks at."""


class OneRun:
    """`ddpsim run`: one schedule, all findings, hazards among them, and notes on what comes in another order."""

    name = "ddpsim run"
    at_once = 1

    def judge(self, case: Case, file: Path) -> Said:
        """Simulate it once."""
        start = time.perf_counter()
        result = simulate(loaded(file), case.size, args=(case.size,))
        notes = [note for note in result.notes if "only explore tries that" in note]
        # Whoever takes messages as they come may mean it: that they come in another order is no alarm.
        orders = () if all("they may come in another order" in note for note in notes) else {ORDER_NOTE}
        return _said(result.findings, str(result), start, orders)


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


class TorchReader:
    """torch's `fr_trace` on dumps of a simulated run, in NCCL's shape: those of `ddpsim run --flight-recorder`."""

    name = "fr_trace"
    at_once = 1

    def judge(self, case: Case, file: Path) -> Said:
        """Have it read them; only that takes its time. What it raises says nothing of the program."""
        result = simulate(loaded(file), case.size, args=(case.size,))
        with tempfile.TemporaryDirectory() as folder:
            write_records(result, RecordFolders(flight_recorder=Path(folder)))
            start = time.perf_counter()
            try:
                text, lacks = told_by_torch(Path(folder)), False
            except (Exception, SystemExit) as error:
                text, lacks = f"{type(error).__name__}: {error}", True
        return Said(lacks or _TOLD.search(text) is not None, text, seconds=time.perf_counter() - start, lacks=lacks)


_TOLD = re.compile(r"missing ranks: |Culprit rank ")
"""What it says besides is that it found no error."""


def _said(findings: Iterable[Finding], text: str, start: float, notes: Iterable[str] = ()) -> Said:
    codes = frozenset([*(str(finding.code) for finding in findings), *notes])
    return Said(bool(codes), text, codes, time.perf_counter() - start)
