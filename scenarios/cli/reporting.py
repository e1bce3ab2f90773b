"""What `--report DIR` writes, and what `--open` opens.

The folder is made before anything runs, so that nobody waits for a report that cannot be written. `reports` is imported
only if somebody wants one.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.options import by_text
from ddpsim.scenarios.cli.status import Status

if TYPE_CHECKING:
    from ddpsim import Result
    from ddpsim.reports.document import Document
    from ddpsim.reports.index import Entry, Row
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.model import Scenario

_WIDTH = 100
"""Columns of lanes that go to no terminal."""


@contextmanager
def reporting(folder: Path | None, *, opens: bool, title: str = "") -> Iterator[Report]:
    """What a command reports to. With a title there is an index of several runs; else there is one, or an exploration.

    What was reported stays and is indexed, also if the command ends early. Raises ReportError for a folder that cannot
    be written, at once.
    """
    made = _made(folder, opens=opens)
    report, is_done = Report(made, title), False
    try:
        yield report
        is_done = True
    finally:
        found = report.finish(is_done=is_done)
        if found is not None:
            show_path(found, opens=opens)
        elif made is not None and folder is None:  # nobody asked for it, and it is empty
            with suppress(OSError):
                made.rmdir()


def show_lanes(result: Result) -> None:
    """Print a lane for each rank of a run, no wider than the terminal; nothing of one that made no call."""
    from ddpsim.reports.forms.narrow_lanes import narrow_lanes
    from ddpsim.reports.making.result import run_of

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    drawn = narrow_lanes(run_of(result), width, is_brief=True)
    if drawn is not None:
        output.show_styled(drawn)
        output.show("")


def _made(folder: Path | None, *, opens: bool) -> Path | None:
    if folder is None and not opens:
        return None
    from ddpsim.reports.files import check_folder

    made = Path(tempfile.mkdtemp(prefix="ddpsim-")) if folder is None else folder
    check_folder(made)
    return made


class Report:
    """Where a command reports its runs to: a folder, or nowhere if no report is wanted."""

    def __init__(self, folder: Path | None, title: str) -> None:
        self._folder = folder
        self._title = title
        self._entries: list[Entry] = []
        self._path: Path | None = None

    @property
    def is_wanted(self) -> bool:
        """False if all that is added goes nowhere."""
        return self._folder is not None

    def add_run(
        self,
        scenario: Scenario,
        engine: Engine,
        result: Result,
        status: Status,
        conclusion: str,
        *,
        how: str,
        seconds: float | None = None,
        transport: str = "memory",
    ) -> None:
        """Add a run that was judged."""
        if self._folder is None:
            return
        from ddpsim.reports.index import row_of
        from ddpsim.reports.making.result import document_of
        from ddpsim.scenarios.model import found_on_processes, found_text

        document = document_of(
            result,
            name=scenario.name,
            how=f"{by_text(engine)}{how}",
            is_expected=status is Status.AS_EXPECTED,
            conclusion=conclusion,
            seconds=seconds,
        )
        if not self._title:
            self._write(document, self._folder)
            return
        expected = scenario.expected_by(engine).text(result.world_size)
        found = found_on_processes(result) if transport == "processes" else found_text(result)
        row = row_of(document, engine=engine.value, expected=expected, found=found)
        self._write_beside(document, self._folder, row)

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
        """Add to the index what came to no result, or was not run."""
        if self._folder is None:
            return
        from ddpsim.reports.forms.junit import Case
        from ddpsim.reports.index import Entry, row_of

        case = Case(
            name=name,
            suite=f"ddpsim.{engine.value}",
            state="failed" if was_run else "not run",
            seconds=seconds,
            kind=found,
            message=found,
            text=text,
        )
        self._entries.append(Entry(row_of(name, engine=engine.value, expected=expected, found=found), case))

    def add_records(self, result: Result, name: str, how: str, notes: Sequence[str]) -> None:
        """Add what the records of a real job come to; there is nothing to run again."""
        if self._folder is None:
            return
        from ddpsim.reports.making.result import document_of

        document = document_of(result, name=name, how=how, conclusion="; ".join(notes))
        (run,) = document.runs
        self._write(replace(document, runs=(replace(run, schedule="", digest=""),)), self._folder)

    def add_exploration(self, make: Callable[[], Document]) -> None:
        """Write the exploration of a command; its document is made only if it is wanted."""
        if self._folder is not None:
            self._write(make(), self._folder)

    def _write(self, document: Document, folder: Path) -> None:
        from ddpsim.reports.files import write_reports

        write_reports(document, folder)
        self._path = folder / "report.html"

    def _write_beside(self, document: Document, folder: Path, row: Row) -> None:
        from ddpsim.reports.files import write_reports
        from ddpsim.reports.forms.junit import cases_of
        from ddpsim.reports.index import Entry, folder_name

        own = folder_name(f"{Path(row.name).name}-{row.engine}", {entry.folder.lower() for entry in self._entries})
        write_reports(document, folder / own)
        (case,) = cases_of(document, suite=f"ddpsim.{row.engine}")
        self._entries.append(Entry(row, case, own))

    def finish(self, *, is_done: bool) -> Path | None:
        """Write the index, if there is one to write; return what to open, if anything was written.

        What ended early has an index of what there is; what came to its end has one also of nothing.
        """
        if self._folder is None or not self._title or not (self._entries or is_done):
            return self._path
        from ddpsim.reports.index import write_index

        return write_index(self._entries, self._folder, title=self._title)


def show_path(path: Path, *, opens: bool) -> None:
    """Say where a report is, and open it if asked."""
    output.show(f"report  {path}")
    if opens:
        webbrowser.open(path.resolve().as_uri())
