"""Renders a document as text, for a terminal and for report.txt."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpsim.reports.document import Document, Exploration, Run
from ddpsim.reports.forms.first_difference import difference_lines, mark_text, marked_events
from ddpsim.reports.forms.narrow_lanes import Marked, narrow_lanes
from ddpsim.reports.printable import printable, printable_lines

WIDTH = 100
"""Columns of report.txt."""


def to_text(document: Document) -> bytes:
    """Render the document as UTF-8 text without colours."""
    return f"{text_of(document, WIDTH).plain}\n".encode()


def text_of(document: Document, width: int) -> Text:
    """Render the document as lines with colours. Lanes have at most `width` columns; the diagnosis is not wrapped."""
    return Text("\n\n").join(_parts(document, width))


def _parts(document: Document, width: int) -> Iterator[Text]:
    exploration = document.exploration
    if exploration is not None:
        yield _coloured(_exploration(exploration))
        if lines := difference_lines(document):
            yield _coloured("\n".join(lines))
    marked, text = marked_events(document), mark_text(document)
    for index, run in enumerate(document.runs):
        head = _head(run)
        yield _coloured(f"--- {head}") if len(document.runs) > 1 else Text(head)
        event = marked.get(index)
        yield from _run(run, width, None if event is None else Marked(event, text))
    if exploration is not None and exploration.conclusion:
        yield _coloured(exploration.conclusion)


def _exploration(exploration: Exploration) -> str:
    lines = [f"{exploration.verdict.value.upper()}  {exploration.program}", f"  {exploration.extent}"]
    lines += [f"  {outcome.count:>7}  {outcome.text}" for outcome in exploration.outcomes]
    return "\n".join(lines)


def _run(run: Run, width: int, marked: Marked | None) -> Iterator[Text]:
    yield _coloured(run.text)
    lanes = narrow_lanes(run, width, marked=marked)
    if lanes is not None:
        yield lanes
    if run.events_left_out:
        yield Text(f"the first {run.events_left_out:,} events are left out: the run is too long for a report")
    if run.conclusion:
        yield _coloured(run.conclusion)


def _head(run: Run) -> str:
    time = "" if run.seconds is None else f"{run.seconds * 1000:.0f} ms"
    return "  ".join(filter(None, [printable(run.name), f"world size {run.world_size}", printable(run.how), time]))


def _coloured(text: str) -> Text:
    coloured = Text(printable_lines(text))
    for pattern, style in STYLES:
        coloured.highlight_regex(pattern, style)
    return coloured


STYLES = (
    (r"(?m)^(?:DEADLOCK|MISMATCH|ERROR|STUCK|DIVERGENCE)\b|^not as expected", "bold red"),
    (r"(?m)^(?:HAZARD|UNKNOWN)\b|^unknown", "bold yellow"),
    (r"(?m)^PASS\b|^as expected", "bold green"),
    (r"(?m)^  (?:where|cause|try|note|cycle|replay) ", "bold"),
    (r"(?m)^  ranks? [\d, -]+", "cyan"),
    (r"(?m)^--- .*$", "bold"),
    (r"(?m)(?<=\d  )! .*$", "bold red"),
)
