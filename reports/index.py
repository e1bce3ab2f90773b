"""The page over several runs: a row each, with what was expected, what was found, and a link to its report."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ddpsim.reports.files import plain_name, write_file
from ddpsim.reports.forms.junit import Case, State, junit_of
from ddpsim.reports.forms.page import page

_SHOWN: dict[State, tuple[str, str]] = {
    "failed": ("not as expected", "fail"),
    "unknown": ("unknown", "unknown"),
    "not run": ("not run", "unknown"),
    "passed": ("as expected", "pass"),
}
"""The word and the colour of each state, in the order in which they stand on the page."""
_ORDER = tuple(_SHOWN)
_FEW = 30
"""So many runs stand in one table."""


class Row(NamedTuple):
    """What the page says of a run."""

    name: str
    engine: str
    """"" where no run has one that is known, which leaves the column out."""
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A run, with what CI shows of it."""

    row: Row
    case: Case
    folder: str = ""
    """Of its report, beside the page; "" if there is none."""


def write_index(entries: Sequence[Entry], folder: Path, *, title: str) -> Path:
    """Write index.html and the junit.xml of all into a folder that is there; return the page.

    Raises ReportError if they cannot be written.
    """
    write_file(folder / "junit.xml", junit_of([entry.case for entry in entries], name=title))
    path = folder / "index.html"
    write_file(path, to_index(entries, title=title))
    return path


def to_index(entries: Sequence[Entry], *, title: str) -> bytes:
    """The page in UTF-8. What did not come out as expected comes first; the rest, if it is much, is folded by kind."""
    ordered = sorted(entries, key=lambda entry: _ORDER.index(entry.case.state))
    folded = [entry for entry in ordered if entry.case.state == "passed"] if len(ordered) > _FEW else []
    values = {
        "title": title,
        "verdict": _SHOWN[min((entry.case.state for entry in entries), key=_ORDER.index, default="passed")][1],
        "totals": ", ".join(_totals(entries)),
        "seconds": sum(entry.case.seconds for entry in entries),
        "entries": ordered[: len(ordered) - len(folded)],
        "kinds": _by_kind(folded),
        "has_engines": any(entry.row.engine for entry in entries),
        "shown": _SHOWN,
    }
    return page("index.html.j2", values, styles=("base.css",))


def _by_kind(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries by the code of what was found, the most frequent first; those without one by the first word."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        words = entry.row.found.split(", ")
        found.setdefault(words[1] if len(words) > 1 else words[0], []).append(entry)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def _totals(entries: Sequence[Entry]) -> Iterator[str]:
    for state in reversed(_ORDER):
        count = sum(entry.case.state == state for entry in entries)
        if count or state == "passed":
            yield f"{count} {_SHOWN[state][0]}"


def folder_name(name: str, taken: Collection[str]) -> str:
    """A name for the folder of a run that every file system takes, and that is none of those taken, in lower case."""
    safe = plain_name(name) or "run"
    found, number = safe, 1
    while found.lower() in taken:
        number += 1
        found = f"{safe}-{number}"
    return found
