"""The page over several runs: a row each, with what was expected, what was found, and a link to its report."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reports.files import write_file
from reports.junit import Case, junit_of

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 80
"""Characters of a folder's name: file systems allow 255 bytes, and the numbered names need a few."""


class Row(NamedTuple):
    """What the page says of a run."""

    name: str
    engine: str
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
    """Write index.html and the junit.xml of all into a folder that is there; return the page."""
    cases = [entry.case for entry in entries]
    write_file(folder / "junit.xml", junit_of(cases, name=title))
    return folder / "index.html"


def folder_name(name: str, taken: Collection[str]) -> str:
    """A name for the folder of a run that every file system takes, and that is none of those taken, in lower case."""
    safe = _UNSAFE.sub("-", name).strip("-.")[:_LONGEST].rstrip("-.") or "run"
    found, number = safe, 1
    while found.lower() in taken:
        number += 1
        found = f"{safe}-{number}"
    return found
