"""`--ddpsim-report DIR`: write a report of each failing test into a folder of its own.

The folder is named after its test, so workers of pytest-xdist never write to the same one. The report is written when
the test is torn down, after its fixtures have undone their patches. index.html is written at the end of the session.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddpsim.reports.document import Document, ReportError
from ddpsim.reports.forms.junit import JunitCase
from ddpsim.reports.index import IndexEntry, IndexRow, index_row_of, write_index
from ddpsim.reports.making.exploration_document import document_of_exploration
from ddpsim.reports.making.result_document import document_of
from ddpsim.reports.report_folder import file_system_name, make_folder, write_reports
from ddpsim.scenarios.cli.options import schedule_source_text
from ddpsim.scenarios.model import outcome_text
from ddpsim.scenarios.pytest_plugin.failure import RanksFailed, RunOfTest
from ddpsim.scenarios.pytest_plugin.fixtures import OPTIONS_KEY
from ddpsim.scenarios.pytest_plugin.running import policy_of_test, seed_of_test
from ddpsim.simulator.errors import make_internal_error
from ddpsim.simulator.policies.named import DEFAULT_EXPLORING
from ddpsim.simulator.wording import count_with_noun

_FOLDER, _ROW = "ddpsim_report", "ddpsim_row"
"""Properties that are stored in pytest's report of a test's teardown: the folder of ddpsim's report, and its row of
index.html, as a list. A worker of pytest-xdist sends the properties to the process that writes index.html."""

_PENDING_FAILURE_KEY = pytest.StashKey[tuple[pytest.TestReport, RunOfTest]]()
"""The stash key under which a test item keeps a failure whose report is not written yet."""

_SECTION = "ddpsim report, written at teardown"
"""The title of a section of the teardown's report; pytest shows those named "teardown" with the test's failure."""


def prepare_folder(config: pytest.Config, folder: str) -> None:
    """Make the folder for reports, relative to where pytest was started. Raises UsageError if that fails."""
    path = config.invocation_params.dir / folder
    try:
        make_folder(path)
    except ReportError as error:
        raise pytest.UsageError(f"--ddpsim-report: {error}") from None
    config.option.ddpsim_report = str(path)  # xdist sends its workers this absolute path


def store_failure(item: pytest.Item, report: pytest.TestReport, run: RunOfTest) -> str:
    """Store the failure of a test; its report is written at teardown. Return the line with the path of this report."""
    item.stash[_PENDING_FAILURE_KEY] = report, run
    page = _report_folder(item) / "report.html"
    near = os.path.relpath(page, item.config.invocation_params.dir)
    return f"  report  {page if near.startswith(os.pardir) else near}"


def write_stored_report(item: pytest.Item, teardown: pytest.TestReport) -> None:
    """Write the stored report of a test at its teardown, and add its folder to pytest's report of the teardown."""
    if _PENDING_FAILURE_KEY not in item.stash:
        return
    folder, (report, run) = _report_folder(item), item.stash[_PENDING_FAILURE_KEY]
    try:
        document = _document_of_run(item, report, run)
        write_reports(document, folder)
    except ReportError as error:
        teardown.sections.append((_SECTION, str(error)))
    except Exception as error:  # raised in a hook, it would end the whole session
        teardown.sections.append((_SECTION, str(make_internal_error(error, "the pytest plugin"))))
    else:
        row = index_row_of(document, expected=item.stash[OPTIONS_KEY].expect or "pass", found=_summary_line(report))
        teardown.user_properties += [(_FOLDER, str(folder)), (_ROW, list(row))]
    del item.stash[_PENDING_FAILURE_KEY]


def rewrite_report(item: pytest.Item, report: pytest.TestReport, run: RunOfTest) -> None:
    """Write the report of a failing test again, about another one of its runs."""
    with suppress(ReportError):
        write_reports(_document_of_run(item, report, run), _report_folder(item))


def _summary_line(report: pytest.TestReport) -> str:
    """Return the line that pytest's summary shows for a failing test."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message: str = getattr(crash, "message", "") or report.longreprtext
    return message.partition("\n")[0]


def _report_folder(item: pytest.Item) -> Path:
    return Path(item.config.getoption("ddpsim_report")) / folder_name(item.nodeid)


def _document_of_run(item: pytest.Item, report: pytest.TestReport, run: RunOfTest) -> Document:
    assert isinstance(item, pytest.Function)
    said: dict[str, Any] = {"name": item.nodeid, "how": _how_it_was_run(item), "conclusion": _conclusion_line(run)}
    if run.exploration is not None:
        return document_of_exploration(run.exploration, is_expected=False, **said)
    return document_of(run.result, is_expected=False, seconds=report.duration, **said)


def _how_it_was_run(item: pytest.Function) -> str:
    """Return the transport, policy and seed of a run, in the form of the console's reports."""
    options = item.stash[OPTIONS_KEY]
    if item.config.getoption("ddpsim_replay") is not None:
        return "replayed"
    seed = seed_of_test(item, options)
    explored = options.explore and options.explore.get("policy", DEFAULT_EXPLORING)
    policy = explored or policy_of_test(item, options, seed)
    name = policy if isinstance(policy, str) else type(policy).__name__
    return schedule_source_text(options.of_run.get("transport", "memory"), name, seed or 0)


def _conclusion_line(run: RunOfTest) -> str:
    """Return one line on the found and the expected outcome; the failure's own line if it has one."""
    line = run.error.line if isinstance(run.error, RanksFailed) else ""
    if line and line not in {f"{finding.code}: {finding.summary}" for finding in run.result.findings}:
        return line
    found = outcome_text(run.result) if run.exploration is None else run.exploration.verdict.value
    return f"not as expected: found {found}; expected pass"


def folder_name(nodeid: str) -> str:
    """Return a folder name for a test: valid on every file system, and different for each test."""
    return f"{file_system_name(nodeid, keeps_end=True)}-{zlib.crc32(nodeid.encode()):08x}"


def write_index_of_session(reporter: pytest.TerminalReporter, folder: str) -> str:
    """Write index.html, even if no test failed. Return a line that says where the reports are."""
    entries = list(_index_entries(reporter))
    count = f"ddpsim: {count_with_noun(len(entries), 'report')} in"
    try:
        return f"{count} {write_index(entries, Path(folder), title='failing tests on ranks')}"
    except ReportError as error:
        return f"{count} {folder}; {error}"


def _index_entries(reporter: pytest.TerminalReporter) -> Iterator[IndexEntry]:
    """Yield an entry of index.html for each report that was written, in the order in which the tests failed."""
    torn_down = [*reporter.stats.get("", ()), *reporter.stats.get("error", ())]
    notes = {each.nodeid: dict(each.user_properties) for each in torn_down if each.when == "teardown"}
    failed = {each.nodeid: each for each in reporter.stats.get("failed", ())}  # the test's is the last, after subtests'
    for nodeid, report in failed.items():
        noted = notes.get(nodeid, {})
        if _FOLDER in noted:
            row = IndexRow(*noted[_ROW])  # as a worker's `index_row_of` filled it
            text = report.longreprtext
            case = JunitCase(nodeid, "ddpsim.pytest", "failed", report.duration, message=row.found, text=text)
            yield IndexEntry(row, case, Path(noted[_FOLDER]).name)
