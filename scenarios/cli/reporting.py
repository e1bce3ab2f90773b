"""The reports that `--report DIR` writes and `--open` opens. `ddpsim.reports` is imported only for a report."""

from __future__ import annotations

import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.options import engine_text
from ddpsim.scenarios.cli.status import ExitStatus

if TYPE_CHECKING:
    from ddpsim import Result
    from ddpsim.reports.document import Document
    from ddpsim.reports.index import IndexEntry
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.model import Scenario

_WIDTH = 100
"""Width of the drawing of the ranks' lanes (one per rank) if the output is not a terminal."""


@contextmanager
def report_writer(folder: Path | None, *, opens: bool, title: str = "") -> Iterator[ReportWriter]:
    """Yield the writer of a command's report.

    With a title the report is an index of several runs; otherwise it shows one run or one exploration. If the command
    ends early, the finished runs are indexed. Raises ReportError for a folder that cannot be written.
    """
    made = folder
    if folder is not None or opens:
        from ddpsim.reports.report_folder import make_folder

        made = folder or Path(tempfile.mkdtemp(prefix="ddpsim-"))
        make_folder(made)
    report, is_done = ReportWriter(made, title), False
    try:
        yield report
        is_done = True
    finally:
        found = report.finish_report(is_done=is_done)
        if found is not None:
            show_report_path(found, opens=opens)
        elif made is not None and folder is None:  # an empty temporary folder
            with suppress(OSError):
                made.rmdir()


def show_lanes(result: Result) -> None:
    """Print a timeline ("lane") for each rank of a run with calls, no wider than the terminal."""
    from ddpsim.reports.forms.narrow_lanes import draw_lanes_as_text
    from ddpsim.reports.making.result_document import run_of

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    drawn = draw_lanes_as_text(run_of(result), width, is_brief=True)
    if drawn is not None:
        output.print_styled(drawn)
        output.print_text("")


class ReportWriter:
    """Writes the report of a command's runs into a folder. Does nothing if the user wants no report."""

    def __init__(self, folder: Path | None, title: str) -> None:
        self._folder = folder
        self._title = title
        self._entries: list[IndexEntry] = []
        self._path: Path | None = None

    @property
    def is_wanted(self) -> bool:
        """False if the user wants no report, so nothing will be written."""
        return self._folder is not None

    def add_run(
        self,
        scenario: Scenario,
        engine: Engine,
        result: Result,
        status: ExitStatus,
        conclusion: str,
        *,
        how: str,
        seconds: float | None = None,
        transport: str = "memory",
    ) -> None:
        """Add a run to the report, with its exit status and conclusion."""
        if self._folder is None:
            return
        from ddpsim.reports.making.result_document import document_of
        from ddpsim.scenarios.model import outcome_text, outcome_text_on_processes

        document = document_of(
            result,
            name=scenario.name,
            how=f"{engine_text(engine)}{how}",
            is_expected=status is ExitStatus.AS_EXPECTED,
            conclusion=conclusion,
            seconds=seconds,
        )
        if not self._title:
            self.write_document(document)
            return
        from ddpsim.reports.forms.junit import junit_cases
        from ddpsim.reports.index import IndexEntry, folder_name, index_row_of
        from ddpsim.reports.report_folder import write_reports

        expected = scenario.expected_by(engine).text(result.world_size)
        found = outcome_text_on_processes(result) if transport == "processes" else outcome_text(result)
        row = index_row_of(document, engine=engine.value, expected=expected, found=found)
        own = folder_name(f"{Path(row.name).name}-{row.engine}", {entry.folder.lower() for entry in self._entries})
        write_reports(document, self._folder / own)
        (case,) = junit_cases(document, suite=f"ddpsim.{row.engine}")
        self._entries.append(IndexEntry(row, case, own))

    def add_without_report(
        self,
        name: str,
        engine: Engine,
        *,
        expected: str,
        found: str,
        was_run: bool = True,
        text: str = "",
        seconds: float = 0.0,
    ) -> None:
        """Add an index row for a scenario without a report of its own: it raised an exception or was not run."""
        if self._folder is None:
            return
        from ddpsim.reports.forms.junit import JunitCase, State
        from ddpsim.reports.index import IndexEntry, index_row_of

        state: State = "failed" if was_run else "not run"
        case = JunitCase(name, f"ddpsim.{engine.value}", state, seconds, kind=found, message=found, text=text)
        self._entries.append(IndexEntry(index_row_of(name, engine=engine.value, expected=expected, found=found), case))

    def add_records(self, result: Result, name: str, how: str, notes: Sequence[str]) -> None:
        """Write the diagnosis of a real job's records. It has no replay line, because a real job cannot be replayed."""
        if self._folder is None:
            return
        from ddpsim.reports.making.result_document import document_of

        document = document_of(result, name=name, how=how, conclusion="; ".join(notes))
        (run,) = document.runs
        self.write_document(replace(document, runs=(replace(run, schedule="", digest=""),)))

    def write_document(self, document: Document) -> None:
        """Write the report of a single run or exploration."""
        from ddpsim.reports.report_folder import write_reports

        assert self._folder is not None, "a report is wanted"
        write_reports(document, self._folder)
        self._path = self._folder / "report.html"

    def finish_report(self, *, is_done: bool) -> Path | None:
        """Write the index of several runs, and return the file to open; None if nothing was written."""
        if self._folder is None or not self._title or not (self._entries or is_done):
            return self._path
        from ddpsim.reports.index import write_index

        return write_index(self._entries, self._folder, title=self._title)


def show_report_path(path: Path, *, opens: bool) -> None:
    """Print the path of a report, and open it in a browser if wanted."""
    output.print_text(f"report  {path}")
    if opens:
        webbrowser.open(path.resolve().as_uri())
