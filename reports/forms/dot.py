"""Renders the wait-for graph for Graphviz: which ranks wait for which ranks, in which call; a cycle is red."""

from collections.abc import Iterator

from ddpsim.reports.document import Document
from ddpsim.reports.layout.wait_nodes import DrawnWaitGraph, is_mismatch, wait_graph_of
from ddpsim.reports.printable import escape_control_characters

_LONGEST = 100
"""The most characters of a label; the rest is cut."""
_RED = "#c62828"


def to_dot(document: Document) -> bytes:
    """Render the wait-for graphs of the document's runs as one graph in UTF-8; each of several runs has a box."""
    lines = [
        "digraph waits {",
        '  graph [rankdir=LR, fontname="sans-serif", labeljust=l, charset="UTF-8"]',
        '  node [shape=box, style=rounded, fontname="sans-serif"]',
        '  edge [fontname="sans-serif"]',
        f"  label={_quote_label(document.title)}",
    ]
    graphs = [(number, run, graph) for number, run in enumerate(document.runs) if (graph := wait_graph_of(run))]
    for number, run, graph in graphs:
        own = list(_graph_lines(number, graph))
        if len(document.runs) > 1:
            head = [f"  subgraph cluster_{number} {{", f"    label={_quote_label(run.name)}"]
            own = [*head, *(f"  {line}" for line in own), "  }"]
        lines += own
    if not graphs:
        lines.append(f'  nobody [label="{_why_no_graph(document)}", style="rounded,dashed"]')
    return "\n".join([*lines, "}", ""]).encode()


def _why_no_graph(document: Document) -> str:
    if not any(run.events for run in document.runs):
        return "there is no trace, so it is unknown which ranks waited"
    if any(map(is_mismatch, document.runs)):
        return "matched calls differ, so no rank waited for a missing call"
    return "no rank waited for another"


def _graph_lines(number: int, graph: DrawnWaitGraph) -> Iterator[str]:
    ends = {"waiting": "waits", "unknown": ""}
    for index, node in enumerate(graph.nodes):
        label = _quote_label(node.label, ends.get(node.end, node.end))
        yield f"  run{number}_{index} [{_attributes(label, is_red=node.is_culprit)}]"
    for edge in graph.edges:
        label = _quote_label(edge.label, "one is enough" if edge.any_suffices else "")
        ends_of_edge = f"run{number}_{edge.source} -> run{number}_{edge.target}"
        yield f"  {ends_of_edge} [{_attributes(label, is_red=edge.in_cycle)}]"


def _attributes(label: str, *, is_red: bool) -> str:
    return f'label={label}, color="{_RED}", penwidth=2' if is_red else f"label={label}"


def _quote_label(*lines: str) -> str:
    """Return a quoted label with these lines; quotes, backslashes and entities in them are escaped."""
    shown = (escape_control_characters(line) for line in lines if line)
    cut = (line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}" for line in shown)
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in cut)
    return '"{}"'.format("\\n".join(escaped))
