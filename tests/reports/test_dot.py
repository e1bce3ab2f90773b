"""The wait-for graph in Graphviz' language, drawn by Graphviz itself."""

import dataclasses
import re
import subprocess
from xml.etree import ElementTree

import pytest

from ddpsim.reports.document import Document, Finding, Waiting
from ddpsim.reports.forms.dot import to_dot
from ddpsim.reports.wording import printable
from ddpsim.simulator.choices import Who
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


def test_waiters_alike_are_one_node_and_the_missing_rank_is_red(drawn):
    svg = drawn(to_dot(document(MISSING)))
    assert groups(svg, "node") == [["ranks 0, 2, 3", "waits"], ["rank 1", "returned"]]
    assert groups(svg, "edge") == [["all_reduce #9"]]
    assert (red(svg, "node"), red(svg, "edge")) == (1, 0)


def test_a_cycle_is_red(drawn):
    svg = drawn(to_dot(document(CYCLE)))
    assert groups(svg, "node") == [[f"rank {rank}", "waits"] for rank in range(4)]
    assert groups(svg, "edge") == [["send #0"]] * 4
    assert (red(svg, "node"), red(svg, "edge")) == (4, 4)


def test_groups_are_named_where_there_are_several(drawn):
    svg = drawn(to_dot(document("groups-in-a-ring")))
    assert groups(svg, "edge") == [[f'all_reduce #1 "{group}"'] for group in "1234"]


def test_threads_are_nodes_of_their_own(drawn):
    waiting = Waiting(Who(0), "the end of its thread", waits_for=(Who(0, "reporter"),))
    svg = drawn(to_dot(Document("t", (Story(1).run(waiting=(waiting,)),))))
    assert groups(svg, "node") == [["rank 0", "waits"], ["rank 0, thread reporter"]]
    assert groups(svg, "edge") == [["the end of its thread"]]


@pytest.mark.parametrize("name", [MISMATCH, THREADS])
def test_where_calls_differ_it_says_that(name, drawn):
    svg = drawn(to_dot(document(name)))
    assert groups(svg, "node") == [["the calls that met differ, so nobody waited for one to come"]]
    assert groups(svg, "edge") == []


def test_512_ranks_that_all_made_another_call_are_no_graph():
    ranks = 512
    run = (
        Story(ranks)
        .differ(*of_own_size(ranks))
        .run(
            findings=(Finding("mismatch.signature", Verdict.FAIL, (), "", "", slots=(0,)),),
            waiting=tuple(Waiting(Who(rank), "all_reduce #0", slots=(0,)) for rank in range(ranks)),
        )
    )
    made = to_dot(Document("t", (run,)))
    assert made.count(b"->") == 0
    assert made.count(b"label=") == 2  # of the graph, and of the node that says why


def test_where_nobody_waits_it_says_so(drawn):
    svg = drawn(to_dot(document("uneven-inputs")))
    assert groups(svg, "node") == [["nobody waited for anybody"]]
    assert groups(svg, "edge") == []


def test_without_a_trace_it_says_that(drawn):
    run = dataclasses.replace(document(MISSING).runs[0], findings=(), calls=(), events=(), slots=(), waiting=())
    svg = drawn(to_dot(Document("t", (run,))))
    assert groups(svg, "node") == [["there is no trace, so nobody knows who waited for whom"]]


def test_one_of_several_is_told(drawn):
    made = document(MISSING)
    waiting = [dataclasses.replace(each, any_suffices=True) for each in made.runs[0].waiting]
    run = dataclasses.replace(made.runs[0], waiting=tuple(waiting))
    assert groups(drawn(to_dot(Document("t", (run,)))), "edge") == [["all_reduce #9", "one is enough"]]


def test_of_several_runs_each_that_waits_has_a_box(drawn):
    runs = [document(name).runs[0] for name in (MISSING, "uneven-inputs", CYCLE)]
    svg = drawn(to_dot(Document("three", tuple(runs))))
    assert [lines[0] for lines in groups(svg, "cluster")] == [MISSING, CYCLE]
    assert len(groups(svg, "node")) == 2 + 4


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_text(text, drawn):
    svg = drawn(to_dot(hostile(text)))
    shown = printable(text)
    short = shown if len(shown) <= 100 else f"{shown[:99]}\N{HORIZONTAL ELLIPSIS}"
    (graph,) = [each for each in svg.iter(f"{SVG}g") if each.get("class") == "graph"]
    assert [each.text for each in graph.findall(f"{SVG}text")] == [short]
    assert len(groups(svg, "node")) == 2
    ((edge,),) = groups(svg, "edge")
    assert edge.startswith(re.sub(" +", " ", short)[:90])
