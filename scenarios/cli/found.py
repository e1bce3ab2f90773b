"""What fuzzing found, reported: each kept failure, and each of the corpus that still fails, is run once more for it."""

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

_HANGS = "it does not come to its end, so it was not run again for a report"


def report_found(campaign: Campaign, report: Report) -> None:
    """Add all that a campaign found."""
    if not report.is_wanted:
        return
    for path, failure in _found(campaign):
        _add(path, failure, report)


def _found(campaign: Campaign) -> Iterator[tuple[Path, Failure]]:
    """The files that fail, each once on each engine."""
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
    except Exception as error:  # of ours: that is what the file is kept for
        text = "".join(traceback.format_exception(error)).rstrip()
        report.add_without_report(str(path), engine, expected=failure.expected, found=failure.found, text=text)
        return
    status, line = judge(scenario.expected_by(engine), result)
    if status is Status.AS_EXPECTED:
        # Such as one that shows only beside another engine, or not every time: the campaign found it all the same.
        status, line = Status.OTHERWISE, f"not as expected: found {failure.found}; expected {failure.expected}"
    seconds = time.perf_counter() - start
    report.add_run(scenario, engine, result, status, line, how="kept by fuzz", seconds=seconds)
