"""Write a document's report into a folder."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from ddpsim.reports.document import Document, ReportError
from ddpsim.reports.forms.chrome_trace import to_chrome_trace
from ddpsim.reports.forms.dot import to_dot
from ddpsim.reports.forms.html import to_html
from ddpsim.reports.forms.json_form import to_json
from ddpsim.reports.forms.junit import to_junit
from ddpsim.reports.forms.text import to_text
from ddpsim.simulator.whole_file import write_atomically

FORMS: dict[str, Callable[[Document], bytes]] = {
    "report.html": to_html,
    "report.txt": to_text,
    "result.json": to_json,
    "trace.json": to_chrome_trace,
    "junit.xml": to_junit,
    "waits.dot": to_dot,
}
"""For each file name of a report, the function that renders the file."""

WRITTEN = ("report.html", "report.txt", "result.json", "trace.json")
"""The files of every report. `ddpsim report` makes the others from result.json."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 80
"""The most characters of a folder's name: file systems allow 255 bytes, and a unique suffix needs some."""


def write_reports(document: Document, folder: Path, names: Sequence[str] = WRITTEN) -> tuple[Path, ...]:
    """Write a document's report, or some of its files, into a folder; return their paths. May raise ReportError."""
    make_folder(folder)
    for name in names:
        write_file(folder / name, FORMS[name](document))
    return tuple(folder / name for name in names)


def write_file(path: Path, data: bytes) -> None:
    """Write a file completely, or leave it unchanged. Raises ReportError if it cannot be written."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise _cannot_write(str(path), "file", error) from None


def make_folder(folder: Path) -> None:
    """Make the folder of a report if it is missing. Raises ReportError if that fails or it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _cannot_write(f"report folder {folder}", "folder", error) from None


def _cannot_write(what: str, kind: str, error: OSError) -> ReportError:
    return ReportError(f"{what} cannot be written ({error.strerror}): give another {kind}")


def file_system_name(name: str, keeps_end: bool = False) -> str:
    """Return a name, shortened, with only characters that every file system accepts; the result may be empty."""
    plain = _UNSAFE.sub("-", name).strip("-.")
    return (plain[-_LONGEST:] if keeps_end else plain[:_LONGEST]).strip("-.")
