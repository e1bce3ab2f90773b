"""The wait-for graph in Graphviz' language, drawn by Graphviz itself."""

import re
import subprocess
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from ddpsim.reports.document import Document, Finding, Waiting
from ddpsim.reports.forms.dot import to_dot
from ddpsim.reports.printable import escape_control_characters
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.verdict import Verdict
from tests.outside import do_without, missing
from tests.reports.examples import CYCLE, HOSTILE, MISMATCH, MISSING, THREADS, document, hostile
from tests.reports.made import Story, of_own_size

SVG = "{http://www.w3.org/2000/svg}"
RED = "#c62828"

pytestmark = pytest.mark.tier("ci")


@pytest.fixture(scope="module")
def drawn():
    """What Graphviz draws of a graph, as parsed SVG; it says nothing meanwhile."""
    do_without(missing("dot"))

    def draw(data):
        done = subprocess.run(["dot", "-Tsvg"], input=data, capture_output=True, check=True)
        assert done.stderr == b""
        return ElementTree.fromstring(done.stdout)

    return draw


def groups(svg, kind):
    """The nodes or edges: each with its title and its lines of text."""
    found = [each for each in svg.iter(f"{SVG}g") if each.get("class") == kind]
    return [[text.text for text in each.iter(f"{SVG}text")] for each in found]


def red(svg, kind):
    """How many of them are red."""
    found = [each for each in svg.iter(f"{SVG}g") if each.get("class") == kind]
    return sum(any(part.get("stroke") == RED for part in each.iter()) for each in found)


def with_thread():
    waiting = Waiting(RankOrThread(0), "the end of its thread", waits_for=(RankOrThread(0, "reporter"),))
    return Story(1).run(waiting=(waiting,))


def for_one_of_several():
    run = document(MISSING).runs[0]
    return replace(run, waiting=tuple(replace(each, any_suffices=True) for each in run.waiting))


def without_trace():
    return replace(document(MISSING).runs[0], findings=(), calls=(), events=(), slots=(), waiting=())


ALIKE = [["ranks 0, 2, 3", "waits"], ["rank 1", "returned"]]
EACH = [[f"rank {rank}", "waits"] for rank in range(4)]
DIFFER = [["matched calls differ, so no rank waited for a missing call"]]
NOBODY = [["there is no trace, so it is unknown which ranks waited"]]
DRAWN = {
    "waiters alike are one node, and the missing rank is red": (MISSING, ALIKE, [["all_reduce #9"]], (1, 0)),
    "a cycle is red": (CYCLE, EACH, [["send #0"]] * 4, (4, 4)),
    "groups are named where there are several": (
        *("groups-in-a-ring", EACH),
        *([[f'all_reduce #1 "{group}"'] for group in "1234"], (4, 4)),
    ),
    "threads are nodes of their own": (
        *(with_thread, [["rank 0", "waits"], ["rank 0, thread reporter"]]),
        *([["the end of its thread"]], (0, 0)),
    ),
    "one of several is told": (for_one_of_several, ALIKE, [["all_reduce #9", "one is enough"]], (1, 0)),
    "where calls differ it says that": (MISMATCH, DIFFER, [], (0, 0)),
    "those of threads, too": (THREADS, DIFFER, [], (0, 0)),
    "where nobody waits it says so": ("uneven-inputs", [["no rank waited for another"]], [], (0, 0)),
    "without a trace it says that": (without_trace, NOBODY, [], (0, 0)),
}


@pytest.mark.parametrize(("made", "nodes", "edges", "reds"), DRAWN.values(), ids=DRAWN)
def test_what_is_drawn(made, nodes, edges, reds, drawn):
    svg = drawn(to_dot(document(made) if isinstance(made, str) else Document("t", (made(),))))
    assert (groups(svg, "node"), groups(svg, "edge")) == (nodes, edges)
    assert (red(svg, "node"), red(svg, "edge")) == reds


def test_512_ranks_that_all_made_another_call_are_no_graph():
    finding = Finding("mismatch.signature", Verdict.FAIL, (), "", "", slots=(0,))
    waiting = tuple(Waiting(RankOrThread(rank), "all_reduce #0", slots=(0,)) for rank in range(512))
    made = to_dot(Document("t", (Story(512).differ(*of_own_size(512)).run(findings=(finding,), waiting=waiting),)))
    assert made.count(b"->") == 0
    assert made.count(b"label=") == 2  # of the graph, and of the node that says why


def test_of_several_runs_each_that_waits_has_a_box(drawn):
    runs = [document(name).runs[0] for name in (MISSING, "uneven-inputs", CYCLE)]
    svg = drawn(to_dot(Document("three", tuple(runs))))
    assert [lines[0] for lines in groups(svg, "cluster")] == [MISSING, CYCLE]
    assert len(groups(svg, "node")) == 2 + 4


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_text(text, drawn):
    svg = drawn(to_dot(hostile(text)))
    shown = escape_control_characters(text)
    short = shown if len(shown) <= 100 else f"{shown[:99]}\N{HORIZONTAL ELLIPSIS}"
    (graph,) = [each for each in svg.iter(f"{SVG}g") if each.get("class") == "graph"]
    assert [each.text for each in graph.findall(f"{SVG}text")] == [short]
    assert len(groups(svg, "node")) == 2
    ((edge,),) = groups(svg, "edge")
    assert edge.startswith(re.sub(" +", " ", short)[:90])
