"""Reports of what fuzzing found: each kept failure, and each corpus file that still fails, is run once more."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from ddpsim import Code
from ddpsim.scenarios.cli.judgement import judge
from ddpsim.scenarios.cli.reporting import Report
from ddpsim.scenarios.cli.status import Status
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.fuzzing.campaign import Campaign
from ddpsim.scenarios.fuzzing.campaign_report import Failure
from ddpsim.scenarios.fuzzing.corpus import CorpusState
from ddpsim.scenarios.running.runner import run_scenario

_HANGS = "this scenario does not end, so it was not run again for a report"


def report_found(campaign: Campaign, report: Report) -> None:
    """Add all that a campaign found."""
    if not report.is_wanted:
        return
    for path, failure in _found(campaign):
        _add(path, failure, report)


def _found(campaign: Campaign) -> Iterator[tuple[Path, Failure]]:
    """Yield each failing file with its failure, once per engine."""
    failing = [(kept.path, kept.failure) for kept in campaign.kept]
    for tried in campaign.corpus:
        if tried.state is CorpusState.FAILS:
            failing += [(tried.path, each.failure) for each in tried.executions if each.failure is not None]
    yield from {(path, failure.group.engine): (path, failure) for path, failure in failing}.values()


def _add(path: Path, failure: Failure, report: Report) -> None:
    engine, start = failure.group.engine, time.perf_counter()
    if failure.group.code == Code.STUCK:
        report.add_without_report(str(path), engine, expected=failure.expected, found=failure.found, text=_HANGS)
        return
    try:
        scenario = load(str(path))
        result = run_scenario(scenario, engine)
    except Exception as error:  # a bug of ddpsim may be why the file is kept
        text = "".join(traceback.format_exception(error)).rstrip()
        report.add_without_report(str(path), engine, expected=failure.expected, found=failure.found, text=text)
        return
    status, line = judge(scenario.expected_by(engine), result)
    if status is Status.AS_EXPECTED:
        # The campaign did find it: it may show only in a comparison of engines, or not every time.
        status, line = Status.OTHERWISE, f"not as expected: found {failure.found}; expected {failure.expected}"
    seconds = time.perf_counter() - start
    report.add_run(scenario, engine, result, status, line, how="kept by fuzz", seconds=seconds)
