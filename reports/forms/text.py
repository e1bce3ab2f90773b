"""Renders a document as text, for a terminal and for report.txt."""

from collections.abc import Iterator

from rich.text import Text

from ddpsim.reports.document import Document, Exploration, Run
from ddpsim.reports.forms.first_difference import difference_lines, mark_text, marked_events
from ddpsim.reports.forms.narrow_lanes import MarkedEvent, draw_lanes_as_text
from ddpsim.reports.printable import escape_control_characters, escape_lines

WIDTH = 100
"""Columns of report.txt."""


def to_text(document: Document) -> bytes:
    """Render the document as UTF-8 text without colours."""
    return f"{text_of(document, WIDTH).plain}\n".encode()


def text_of(document: Document, width: int) -> Text:
    """Render the document as lines with colours. Lanes have at most `width` columns; the diagnosis is not wrapped."""
    return Text("\n\n").join(_text_parts(document, width))


def _text_parts(document: Document, width: int) -> Iterator[Text]:
    exploration = document.exploration
    if exploration is not None:
        yield _add_colours(_exploration_text(exploration))
        if lines := difference_lines(document):
            yield _add_colours("\n".join(lines))
    marked, text = marked_events(document), mark_text(document)
    for index, run in enumerate(document.runs):
        head = _head_line(run)
        yield _add_colours(f"--- {head}") if len(document.runs) > 1 else Text(head)
        event = marked.get(index)
        yield from _run_texts(run, width, None if event is None else MarkedEvent(event, text))
    if exploration is not None and exploration.conclusion:
        yield _add_colours(exploration.conclusion)


def _exploration_text(exploration: Exploration) -> str:
    lines = [f"{exploration.verdict.value.upper()}  {exploration.program}", f"  {exploration.extent}"]
    lines += [f"  {outcome.count:>7}  {outcome.text}" for outcome in exploration.outcomes]
    return "\n".join(lines)


def _run_texts(run: Run, width: int, marked: MarkedEvent | None) -> Iterator[Text]:
    yield _add_colours(run.text)
    lanes = draw_lanes_as_text(run, width, marked=marked)
    if lanes is not None:
        yield lanes
    if run.events_left_out:
        yield Text(f"the first {run.events_left_out:,} events are left out: the run is too long for a report")
    if run.conclusion:
        yield _add_colours(run.conclusion)


def _head_line(run: Run) -> str:
    time = "" if run.seconds is None else f"{run.seconds * 1000:.0f} ms"
    texts = map(escape_control_characters, [run.name, f"world size {run.world_size}", run.how, time])
    return "  ".join(filter(None, texts))


def _add_colours(text: str) -> Text:
    coloured = Text(escape_lines(text))
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
