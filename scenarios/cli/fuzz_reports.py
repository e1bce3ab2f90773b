"""Add to the report what fuzzing found.

Each kept failure, and each corpus file that still fails, is run once more for it.
"""

import time
import traceback
from pathlib import Path

from ddpsim import Code
from ddpsim.scenarios.cli.judgement import judge_result
from ddpsim.scenarios.cli.reporting import ReportWriter
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.fuzzing.campaign import Campaign
from ddpsim.scenarios.fuzzing.campaign_report import FuzzFailure
from ddpsim.scenarios.fuzzing.corpus import CorpusFileState
from ddpsim.scenarios.running.runner import run_scenario


def report_campaign_failures(campaign: Campaign, report: ReportWriter) -> None:
    """Add all failures of a fuzzing campaign to the report: each file with a failing scenario, once per engine."""
    if not report.is_wanted:
        return
    failing = [(kept.path, kept.failure) for kept in campaign.kept]
    for tried in campaign.corpus:
        if tried.state is CorpusFileState.FAILS:
            failing += [(tried.path, each.failure) for each in tried.executions if each.failure is not None]
    for path, failure in {(path, each.group.engine): (path, each) for path, each in failing}.values():
        _add_failure(path, failure, report)


def _add_failure(path: Path, failure: FuzzFailure, report: ReportWriter) -> None:
    """Run the scenario in a failing file once more, and add the run to the report."""
    engine, start = failure.group.engine, time.perf_counter()
    if failure.group.code == Code.STUCK:
        text = "this scenario does not end, so it was not run again for a report"
        report.add_without_report(str(path), engine, expected=failure.expected, found=failure.found, text=text)
        return
    try:
        scenario = load(str(path))
        result = run_scenario(scenario, engine)
    except Exception as error:  # a bug of ddpsim may be why the file is kept
        text = "".join(traceback.format_exception(error)).rstrip()
        report.add_without_report(str(path), engine, expected=failure.expected, found=failure.found, text=text)
        return
    status, line = judge_result(scenario.expected_by(engine), result)
    if status is ExitStatus.AS_EXPECTED:
        # The campaign did find it: it may show only in a comparison of engines, or not every time.
        status, line = ExitStatus.OTHERWISE, f"not as expected: found {failure.found}; expected {failure.expected}"
    seconds = time.perf_counter() - start
    report.add_run(scenario, engine, result, status, line, how="kept by fuzz", seconds=seconds)
