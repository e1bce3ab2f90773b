"""The table of `ddpsim zoo`: a row for each run, then the whole report of each unexpected run."""

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpsim import Result, UsageError
from ddpsim.scenarios import model
from ddpsim.scenarios.cli.judgement import is_found_at_wrong_line, judge_result
from ddpsim.scenarios.cli.reporting import ReportWriter
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.jobs.job_result import reason_processes_cannot_run
from ddpsim.scenarios.running.runner import PROCESSES, run_scenario
from ddpsim.simulator.wording import count_with_noun

_WIDTH = 100
_NAME_WIDTH = 48
"""The largest width of the column of names. A longer name shifts only its own row."""
_TIME_WIDTH = 5
_MARKS = {ExitStatus.AS_EXPECTED: "=", ExitStatus.OTHERWISE: "!", ExitStatus.UNKNOWN: "?", None: "-"}


@dataclass(frozen=True, slots=True)
class ZooOutcome:
    """The outcome of one scenario on one engine, for a row of the table."""

    name: str
    engine: Engine
    status: ExitStatus | None
    """The exit status of the run; None if the scenario was not run."""
    expected: str
    found: str
    """The outcome of the run; "" if it is as expected. For a scenario that was not run: what the transport cannot
    do."""
    seconds: float
    text: str = ""
    """The whole report of an unexpected run; "" for any other run."""


def run_for_zoo(
    scenario: model.Scenario, engine: Engine, report: ReportWriter, *, how: str, transport: str, **options: Any
) -> ZooOutcome:
    """Run a scenario, and add the run to the report. An exception in ddpsim itself becomes the outcome of the run."""
    expected = scenario.expected_by(engine)
    wanted = _drop_verdict(expected.text(scenario.world_size))
    if transport == PROCESSES and (why := reason_processes_cannot_run(scenario)):
        report.add_without_report(scenario.name, engine, expected=wanted, found=why, was_run=False)
        return ZooOutcome(scenario.name, engine, None, wanted, why, 0.0)
    start = time.perf_counter()
    try:
        result = run_scenario(scenario, engine, transport=transport, **options)
    except Exception as error:
        seconds, status, found = time.perf_counter() - start, ExitStatus.OTHERWISE, type(error).__name__
        is_plain = isinstance(error, UsageError)
        text = f"{found}: {error}" if is_plain else "".join(traceback.format_exception(error)).rstrip()
        report.add_without_report(scenario.name, engine, expected=wanted, found=found, text=text, seconds=seconds)
    else:
        seconds, found = time.perf_counter() - start, _unexpected_outcome_text(expected, result, transport)
        status, line = judge_result(expected, result, transport)
        text = "" if status is ExitStatus.AS_EXPECTED else f"{result}\n\n{line}"
        report.add_run(scenario, engine, result, status, line, how=how, seconds=seconds, transport=transport)
    return ZooOutcome(scenario.name, engine, status, wanted, found, seconds, text)


def _unexpected_outcome_text(expected: model.Expectation, result: Result, transport: str) -> str:
    if transport == PROCESSES:
        found = model.outcome_text_on_processes(result)
        return "" if found == _drop_verdict(expected.text(result.world_size)) else found
    found = model.outcome_text(result)
    if is_found_at_wrong_line(expected, result):
        return f"it at {model.location_of_first_finding(result)}"
    return "" if found == expected.text(result.world_size) and expected.is_met_by(result) else _drop_verdict(found)


def _drop_verdict(text: str) -> str:
    """Return an outcome such as "fail, deadlock.cycle" without the verdict "fail", which the finding code implies."""
    verdict, _, finding = text.partition(", ")
    return finding or verdict


class ZooTable:
    """Formats the rows of the table, with columns as wide as their widest cell."""

    def __init__(self, pairs: Sequence[tuple[model.Scenario, Engine]]) -> None:
        engines = {engine for _, engine in pairs}
        self._name_width = min(_NAME_WIDTH, max(map(len, ["name", *(scenario.name for scenario, _ in pairs)])))
        self._engine_width = max(len(engine.value) for engine in engines) if len(engines) > 1 else None
        """Width of the column for the engine; None if all runs have the same engine and the column is not needed."""

    def header_row(self) -> str:
        """Return the header row."""
        return f"{self._name_and_time_columns('name', 'by', 'ms')}    expected"

    def row_of_outcome(self, outcome: ZooOutcome) -> str:
        """Return the table row of a run: a mark, the expected outcome, and the found one or the reason why it was not
        run."""
        cells = self._name_and_time_columns(outcome.name, outcome.engine.value, f"{outcome.seconds * 1000:.0f}")
        line = f"{cells}  {_MARKS[outcome.status]} {outcome.expected}"
        if not outcome.found:
            return line
        found = f"{'not run:' if outcome.status is None else 'found'} {outcome.found}"
        return f"{line}; {found}" if len(line) + 2 + len(found) <= _WIDTH else f"{line};\n{'':{len(cells)}}    {found}"

    def _name_and_time_columns(self, name: str, engine: str, milliseconds: str) -> str:
        by = "" if self._engine_width is None else f"  {engine:<{self._engine_width}}"
        return f"{name:<{self._name_width}}{by}  {milliseconds:>{_TIME_WIDTH}}"


def reports_and_counts(outcomes: Sequence[ZooOutcome], seconds: float) -> str:
    """Return the whole report of each unexpected run, and a line that counts the outcomes."""
    run = [outcome for outcome in outcomes if outcome.status is not None]
    surprising = [outcome for outcome in run if outcome.status is not ExitStatus.AS_EXPECTED]
    texts = [f"\n--- {each.name}, engine {each.engine.value}\n{each.text}" for each in surprising]
    surprises = sum(outcome.status is ExitStatus.OTHERWISE for outcome in outcomes)
    unknown = len(surprising) - surprises
    noun = "scenario" if len({outcome.engine for outcome in outcomes}) < 2 else "run"
    as_expected = count_with_noun(len(run) - len(surprising), noun)
    counts = [f"{as_expected} as expected", count_with_noun(surprises, "surprise")]
    counts += [f"{unknown} unknown"] if unknown else []
    counts += [f"{len(outcomes) - len(run)} not run"] if len(run) < len(outcomes) else []
    return "\n".join([*texts, "", f"{', '.join(counts)}, {seconds:.1f} s"])
