"""A document as text: what a terminal shows, and report.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reports.document import Document, Exploration, Run

WIDTH = 120
"""Of report.txt."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""A terminal would obey these."""


def to_text(document: Document) -> bytes:
    """The document as UTF-8 text without colours."""
    return f"{text_of(document, WIDTH)}\n".encode(errors="replace")


def text_of(document: Document, width: int) -> str:
    """The document as lines, the lanes no wider than that."""
    text = "\n\n".join(_parts(document, width))
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _parts(document: Document, width: int) -> Iterator[str]:
    exploration = document.exploration
    if exploration is not None:
        yield _exploration(exploration)
    for run in document.runs:
        if len(document.runs) > 1:
            yield f"--- {run.name}"
        yield from _run(run, width)
    if exploration is not None and exploration.conclusion:
        yield exploration.conclusion


def _exploration(exploration: Exploration) -> str:
    lines = [f"{exploration.verdict.upper()}  {exploration.program}", f"  {exploration.extent}"]
    lines += [f"  {outcome.count:>7}  {outcome.text}" for outcome in exploration.outcomes]
    if exploration.difference is not None:
        lines += ["", f"  first difference  {exploration.difference.text}"]
    return "\n".join(lines)


def _run(run: Run, width: int) -> Iterator[str]:
    yield _head(run)
    yield run.text
    if run.conclusion:
        yield run.conclusion


def _head(run: Run) -> str:
    time = "" if run.seconds is None else f"{run.seconds * 1000:.0f} ms"
    return "  ".join(filter(None, [run.name, f"world size {run.world_size}", run.how, time]))
