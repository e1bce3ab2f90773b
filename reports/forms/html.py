"""Renders the report as one HTML file that needs no other file: the lanes of each run and what was found.

Texts are in the page itself. The scripts in assets draw the lanes from data (`page_data`), as SVG and only for the
visible columns. So a click, a key or a test finds elements, and 64,000 events cost no more than 600.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ddpsim.reports.document import MARKS, Document, Finding, Run, Site
from ddpsim.reports.forms import page_data
from ddpsim.reports.forms.first_difference import first_difference_of, mark_text, marked_events
from ddpsim.reports.forms.page import embed_json, render_page
from ddpsim.reports.layout.code_lines import SIDES, CodeLine, code_lines_of
from ddpsim.reports.layout.lanes import shown_lanes
from ddpsim.reports.layout.mismatches import differing_calls
from ddpsim.reports.layout.wait_layout import pictures_of
from ddpsim.reports.layout.wait_nodes import wait_graph_of
from ddpsim.reports.printable import VERBS
from ddpsim.simulator.events import EventKind

STYLES = ("base.css", "report.css")
SCRIPTS = (
    "data.js",
    "describe.js",
    "folds.js",
    "bands.js",
    "geometry.js",
    "pen.js",
    "progress.js",
    "margins.js",
    "messages.js",
    "draw.js",
    "details.js",
    "lanes.js",
    "compare.js",
    "find.js",
    "scrubber.js",
    "page.js",
)


def to_html(document: Document, source_links: str = "") -> bytes:
    """Render the document as a page in UTF-8. `source_links`: the address of a line of the program, in which {path} and
    {line} are replaced; "" for lines without links."""

    def link_of(site: Site) -> str:
        return source_links.replace("{path}", quote(site.file, errors="replace")).replace("{line}", str(site.line))

    texts = page_data.TextTable()
    marked = marked_events(document)
    shown = [shown_lanes(run) for run in document.runs]
    views = [
        page_data.page_data_of(run, lanes, texts, marked=marked.get(index), link_of=link_of)
        for index, (run, lanes) in enumerate(zip(document.runs, shown, strict=True))
    ]
    verbs = {page_data.KINDS[kind]: verb for kind, verb in VERBS.items()}
    data = {
        "runs": views,
        "texts": texts.all_texts(),
        "families": page_data.FAMILIES,
        "verbs": verbs,
        "mark": mark_text(document),
    }
    first = document.exploration.failing if document.exploration is not None else None
    values: dict[str, Any] = {
        "title": f"{document.title} - ddpsim",
        "document": document,
        "runs": sorted(enumerate(document.runs), key=lambda each: each[0] != first),
        "shown": shown,
        "difference": first_difference_of(document),
        "cards": [finding_cards_of(run) for run in document.runs],
        "graphs": [wait_graph_of(run) for run in document.runs],
        "pictures_of": pictures_of,
        "signs_of": legend_signs,
        "family_of": lambda call: page_data.FAMILIES[page_data.family_index_of(call)],
        "excerpt_of": page_data.source_excerpt,
        "link_of": link_of,
        "data": embed_json(data),
    }
    return render_page("report.html.j2", values, styles=STYLES, scripts=SCRIPTS)


def legend_signs(run: Run) -> frozenset[str]:
    """Return the names of the signs that the page's legend explains: families of calls, kinds of marks, highlights."""
    issued = [run.calls[event.call] for event in run.events if event.kind is EventKind.ISSUE and event.call is not None]
    kinds = {event.kind.value for event in run.events if event.kind in MARKS}
    differing = differing_calls(run).values()
    waiting = {run.events[issue].rank for slot in run.causal_matched_calls for issue in run.slots[slot].issues}
    states = {
        "bucket": any(call.bucket is not None for call in issued),
        "shadow": any(call.is_shadow for call in issued),
        "differs": any(each.is_odd and each.side < 0 for each in differing),
        "others": any(not each.is_odd for each in differing),
        **{
            f"side{side}": any(each.side % SIDES == side for each in differing if each.side >= 0)
            for side in range(SIDES)
        },
        "waits": bool(run.waiting),
        "blamed": not run.culprits.isdisjoint(waiting),
    }
    families = {page_data.FAMILIES[page_data.family_index_of(call)] for call in issued}
    signs = families | kinds | {name for name, occurs in states.items() if occurs}
    return frozenset(signs | {f"slot{colour}" for colour in page_data.colours_of(run).values()})


_MOST_LINES = 6
_MOST_CARDS = 13
"""The largest number of findings on the page; the text form lists all."""
_MOST_VALUES = 8


@dataclass(frozen=True, slots=True)
class FindingCard:
    """A finding as the page shows it, without lines of the program that an earlier finding shows."""

    finding: Finding
    code_lines: tuple[CodeLine, ...]
    lines_left_out: int
    values: tuple[str, ...]
    """If replicas differ: the value that each rank has."""


def finding_cards_of(run: Run) -> tuple[FindingCard, ...]:
    """Return the findings at the top of a run's section, the most important first."""
    shown: set[int] = set()
    cards = []
    for finding in run.findings[:_MOST_CARDS]:
        lines = tuple(line for line in code_lines_of(run, finding) if line.site not in shown)
        shown |= {line.site for line in lines}
        left_out = max(0, len(lines) - _MOST_LINES)
        cards.append(FindingCard(finding, lines[:_MOST_LINES], left_out, tuple(_replica_values(finding))))
    return tuple(cards)


def _replica_values(finding: Finding) -> Iterator[str]:
    """Yield, for replicas that differ, a row for each value, since lanes do not show which rank has which value."""
    if finding.code.startswith("divergence."):
        rows = [line.strip() for line in finding.text.splitlines() if line.startswith(("  rank ", "  ranks "))]
        yield from rows[:_MOST_VALUES]
        if len(rows) > _MOST_VALUES:
            yield f"... {len(rows) - _MOST_VALUES} more"
