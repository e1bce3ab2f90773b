"""index.html over the reports of a pytest session. With pytest-xdist the workers wrote the reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpsim.reports.document import ReportError
from ddpsim.reports.forms.junit import JunitCase
from ddpsim.reports.index import IndexEntry, IndexRow, write_index
from ddpsim.scenarios.pytest_plugin.failure_reports import FOLDER, ROW


def write_page(reporter: pytest.TerminalReporter, folder: str) -> str:
    """Write index.html, also if no test failed; return a line that says where the reports are."""
    entries = list(_entries(reporter))
    count = f"ddpsim: {len(entries)} {'report' if len(entries) == 1 else 'reports'} in"
    try:
        return f"{count} {write_index(entries, Path(folder), title='failing tests on ranks')}"
    except ReportError as error:
        return f"{count} {folder}; {error}"


def _entries(reporter: pytest.TerminalReporter) -> Iterator[IndexEntry]:
    """Yield an entry for each report that was written, in the order in which the tests failed."""
    torn_down = [*reporter.stats.get("", ()), *reporter.stats.get("error", ())]
    notes = {each.nodeid: dict(each.user_properties) for each in torn_down if each.when == "teardown"}
    failed = {each.nodeid: each for each in reporter.stats.get("failed", ())}  # the test's is the last, after subtests'
    for nodeid, report in failed.items():
        noted = notes.get(nodeid, {})
        if FOLDER in noted:
            row = IndexRow(*noted[ROW])  # as a worker's `row_of` filled it
            case = JunitCase(
                nodeid, "ddpsim.pytest", "failed", report.duration, message=row.found, text=report.longreprtext
            )
            yield IndexEntry(row, case, Path(noted[FOLDER]).name)
