"""`--ddpsim-report DIR`: a report of each failing test, in a folder of its own.

A folder is named after its test alone, so the workers of xdist, each of which writes what it has run, never meet.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from reports.document import Document
from reports.errors import ReportError
from reports.files import check_folder, plain_name, write_reports
from reports.making.exploration import document_of_exploration
from reports.making.result import document_of
from scenarios.cli.options import how_text
from scenarios.model import found_text
from scenarios.pytest_plugin.failure import Run
from scenarios.pytest_plugin.fixtures import OPTIONS_KEY
from scenarios.pytest_plugin.running import policy_of, seed_of

_PROPERTY = "ddpsim_report"
"""Under this name pytest's own report of a test says where ours is, also across processes."""


def prepare_folder(config: pytest.Config, folder: str) -> None:
    """Make the folder for reports, from where pytest was started. Raises UsageError if it cannot be written."""
    path = config.invocation_params.dir / folder
    try:
        check_folder(path)
    except ReportError as error:
        raise pytest.UsageError(f"--ddpsim-report: {error}") from None
    config.option.ddpsim_report = str(path)  # the workers of xdist are told this one


def write_report(item: pytest.Item, report: pytest.TestReport, run: Run, folder: Path) -> None:
    """Write the report of a failing test, and note in pytest's own that there is one."""
    place = folder / folder_name(item.nodeid)
    try:
        write_reports(_document(item, report, run), place)
    except ReportError as error:
        report.sections.append(("ddpsim report", str(error)))
    except Exception as error:  # raised in a hook it would end the whole session
        report.sections.append(("ddpsim report", f"{error!r} (a bug of ddpsim, please report it)"))
    else:
        report.user_properties.append((_PROPERTY, str(place)))


def _document(item: pytest.Item, report: pytest.TestReport, run: Run) -> Document:
    assert isinstance(item, pytest.Function)
    how, conclusion = _how(item), _conclusion(run)
    if run.exploration is not None:
        return document_of_exploration(
            run.exploration, name=item.nodeid, how=how, is_expected=False, conclusion=conclusion
        )
    return document_of(
        run.result, name=item.nodeid, how=how, is_expected=False, conclusion=conclusion, seconds=report.duration
    )


def _how(item: pytest.Function) -> str:
    """Transport, policy and seed, as the console's reports have them."""
    options = item.stash[OPTIONS_KEY]
    if item.config.getoption("ddpsim_replay") is not None:
        return "replayed"
    seed = seed_of(item, options)
    policy = policy_of(item, options, seed) if options.explore is None else options.explore.get("policy", "dpor")
    name = policy if isinstance(policy, str) else type(policy).__name__
    return how_text(options.transport, name, seed or 0)


def _conclusion(run: Run) -> str:
    """What was expected of it: an error that says so in its first line is quoted, the others leave it to us."""
    line = getattr(run.error, "line", "")
    if line and line == str(run.error).partition("\n")[0]:
        return line
    found = found_text(run.result) if run.exploration is None else run.exploration.verdict.value
    return f"not as expected: found {found}; expected pass"


def folder_name(nodeid: str) -> str:
    """A name that every file system takes, another one for each test."""
    return f"{plain_name(nodeid, keeps_end=True)}-{zlib.crc32(nodeid.encode()):08x}"


def summary_line(reports: list[pytest.TestReport], folder: str) -> str:
    """Where the reports of a session are."""
    count = sum(1 for report in reports if _PROPERTY in dict(report.user_properties))
    return f"ddpsim: {count} {'report' if count == 1 else 'reports'} in {folder}"
