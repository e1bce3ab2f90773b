"""index.html of several runs: a row for each, with what was expected and found, and a link to its report."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ddpsim.reports.document import Document
from ddpsim.reports.forms.junit import JunitCase, State, junit_of
from ddpsim.reports.forms.page import render_page
from ddpsim.reports.report_folder import file_system_name, write_file

_SHOWN: dict[State, tuple[str, str]] = {
    "failed": ("not as expected", "fail"),
    "unknown": ("unknown", "unknown"),
    "not run": ("not run", "unknown"),
    "passed": ("as expected", "pass"),
}
"""For each state of a run, its word and its colour, in the order of the page."""
_ORDER = tuple(_SHOWN)
_FEW = 30
"""If the page has more runs than this number, the runs that passed are folded."""


class IndexRow(NamedTuple):
    """The texts of a run's row. Each field is a column, which the page omits if it is empty for every run."""

    name: str
    engine: str
    expected: str
    found: str


def index_row_of(run: Document | str, *, engine: str = "", expected: str, found: str) -> IndexRow:
    """Return the row of a run, given its document, or only its name if it has no report."""
    return IndexRow(run if isinstance(run, str) else run.title, engine, expected, found)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A run on the page, and its test case for CI systems."""

    row: IndexRow
    case: JunitCase
    folder: str = ""
    """The folder of the run's report, next to the page; "" if the run has no report."""


def write_index(entries: Sequence[IndexEntry], folder: Path, *, title: str) -> Path:
    """Write index.html and junit.xml for all runs into a folder; return index.html's path. May raise ReportError."""
    write_file(folder / "junit.xml", junit_of([entry.case for entry in entries], name=title))
    path = folder / "index.html"
    write_file(path, to_index(entries, title=title))
    return path


def to_index(entries: Sequence[IndexEntry], *, title: str) -> bytes:
    """Return index.html in UTF-8. Unexpected outcomes come first; many expected outcomes are folded by finding."""
    ordered = sorted(entries, key=lambda entry: _ORDER.index(entry.case.state))
    folded = [entry for entry in ordered if entry.case.state == "passed"] if len(ordered) > _FEW else []
    states = [entry.case.state for entry in entries]
    values = {
        "title": title,
        "verdict": _SHOWN[min(states, key=_ORDER.index, default="passed")][1],
        "totals": ", ".join(
            f"{count} {_SHOWN[state][0]}"
            for state in reversed(_ORDER)
            if (count := states.count(state)) or state == "passed"
        ),
        "seconds": sum(entry.case.seconds for entry in entries),
        "entries": ordered[: len(ordered) - len(folded)],
        "kinds": _group_by_finding(folded),
        "columns": [name for name in IndexRow._fields[1:] if any(getattr(entry.row, name) for entry in entries)],
        "shown": _SHOWN,
    }
    return render_page("index.html.j2", values, styles=("base.css",))


def _group_by_finding(entries: Sequence[IndexEntry]) -> dict[str, list[IndexEntry]]:
    """Group the runs by finding code, the most frequent first; a run without a code is grouped by its first word."""
    found: dict[str, list[IndexEntry]] = {}
    for entry in entries:
        words = entry.row.found.split(", ")
        found.setdefault(words[1] if len(words) > 1 else words[0], []).append(entry)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def folder_name(name: str, taken: Collection[str]) -> str:
    """Return a folder name for `name` that every file system accepts, and whose lower case is not in `taken`."""
    safe = file_system_name(name) or "run"
    found, number = safe, 1
    while found.lower() in taken:
        number += 1
        found = f"{safe}-{number}"
    return found
