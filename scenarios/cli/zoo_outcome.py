"""The outcome of one scenario of `ddpsim zoo`: the cells of its row, and the whole report if it is unexpected."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Any

from ddpsim import Result, UsageError
from ddpsim.scenarios.cli.judgement import judge, misses_line
from ddpsim.scenarios.cli.reporting import Report
from ddpsim.scenarios.cli.status import Status
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.jobs.job_result import refusal
from ddpsim.scenarios.model import Expectation, Scenario, found_location, found_on_processes, found_text
from ddpsim.scenarios.running.runner import PROCESSES, run_scenario


@dataclass(frozen=True, slots=True)
class ZooOutcome:
    """The outcome of one scenario on one engine, for a row of the table."""

    name: str
    engine: Engine
    status: Status | None
    """None if it was not run."""
    expected: str
    found: str
    """The outcome, "" if it is the expected one; for a scenario that was not run, what the transport lacks."""
    seconds: float
    text: str = ""
    """The whole report of an unexpected run, else ""."""


def outcome_of(
    scenario: Scenario,
    engine: Engine,
    report: Report,
    *,
    how: str,
    transport: str,
    **options: Any,
) -> ZooOutcome:
    """Run a scenario, and add it to the report. An exception of ddpsim is its outcome; later scenarios still run."""
    expected = scenario.expected_by(engine)
    wanted = _brief(expected.text(scenario.world_size))
    if transport == PROCESSES and (why := refusal(scenario)):
        report.add_without_report(scenario.name, engine, expected=wanted, found=why, was_run=False)
        return ZooOutcome(scenario.name, engine, None, wanted, why, 0.0)
    start = time.perf_counter()
    try:
        result = run_scenario(scenario, engine, transport=transport, **options)
    except Exception as error:
        seconds, status, found = time.perf_counter() - start, Status.OTHERWISE, type(error).__name__
        text = _error_text(error)
        report.add_without_report(scenario.name, engine, expected=wanted, found=found, text=text, seconds=seconds)
    else:
        seconds, found = time.perf_counter() - start, _found_cell(expected, result, transport)
        status, line = judge(expected, result, transport)
        text = "" if status is Status.AS_EXPECTED else f"{result}\n\n{line}"
        report.add_run(scenario, engine, result, status, line, how=how, seconds=seconds, transport=transport)
    return ZooOutcome(scenario.name, engine, status, wanted, found, seconds, text)


def _found_cell(expected: Expectation, result: Result, transport: str) -> str:
    if transport == PROCESSES:
        found = found_on_processes(result)
        return "" if found == _brief(expected.text(result.world_size)) else found
    found = found_text(result)
    if misses_line(expected, result):
        return f"it at {found_location(result)}"
    return "" if found == expected.text(result.world_size) and expected.is_met_by(result) else _brief(found)


def _brief(text: str) -> str:
    """Drop the verdict from a text such as "fail, deadlock.cycle": the finding code implies it."""
    verdict, _, finding = text.partition(", ")
    return finding or verdict


def _error_text(error: Exception) -> str:
    if isinstance(error, UsageError):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(error)).rstrip()
