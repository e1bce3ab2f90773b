"""The wait-for graph: who is one node, which edges there are, and a picture in which nothing overlaps."""

from dataclasses import replace
from itertools import combinations

import pytest

from reports.document import Finding, Rank, Waiting, Who
from reports.layout.wait_graph import wait_graph_of
from reports.layout.wait_layout import LARGEST, picture_of
from tests.reports.examples import MISMATCH, THREADS, document
from tests.reports.made import Story, call, missing_rank, passing


def ring(ranks: int):
    """Each rank waits for the next one, in a group of both."""
    story = Story(ranks)
    slots = [story.hang(call(0, group=f"{rank}"), [rank], [(rank + 1) % ranks]) for rank in range(ranks)]
    waiting = tuple(Waiting(Who(rank), "all_reduce #0", None, (slot,)) for rank, slot in enumerate(slots))
    finding = Finding("deadlock.cycle", "fail", tuple(range(ranks)), "", "", cycle=tuple(range(ranks)))
    return story.run(waiting=waiting, findings=(finding,))


def test_who_waits_alike_is_one_node():
    graph = wait_graph_of(missing_rank(5, 1))
    assert [(node.label, node.end, node.is_culprit) for node in graph.nodes] == [
        ("ranks 0, 2-4", "waiting", False),
        ("rank 1", "returned", True),
    ]
    assert [(edge.source, edge.target, edge.label, edge.in_cycle) for edge in graph.edges] == [
        (0, 1, "all_reduce #2", False)
    ]


def test_where_nobody_waits_there_is_no_graph():
    assert wait_graph_of(passing()) is None


def test_a_cycle_is_marked():
    graph = wait_graph_of(ring(3))
    assert [(edge.source, edge.target, edge.label, edge.in_cycle) for edge in graph.edges] == [
        (0, 1, 'all_reduce #0 "0"', True),
        (1, 2, 'all_reduce #0 "1"', True),
        (2, 0, 'all_reduce #0 "2"', True),
    ]


def test_ranks_on_both_sides_of_an_inversion_are_two_nodes():
    graph = wait_graph_of(document("group-order-inversion").runs[0])
    assert [node.label for node in graph.nodes] == ["ranks 0, 2", "ranks 1, 3"]
    assert [(edge.source, edge.target, edge.in_cycle) for edge in graph.edges] == [(0, 1, True), (1, 0, True)]


@pytest.mark.parametrize("name", [MISMATCH, THREADS, "rank0-eval-through-wrapper-with-buffers"])
def test_where_calls_differ_nobody_waits_for_one_to_come(name):
    assert wait_graph_of(document(name).runs[0]) is None


def test_a_slot_whose_calls_differ_adds_nothing_to_the_graph():
    run = missing_rank(4, 1)
    (finding,) = run.findings
    beside = replace(finding, code="mismatch.operation")
    differing = replace(run.slots[0], state="mismatched", match=None)
    waiting = (*run.waiting[:2], replace(run.waiting[2], slots=(0,)))
    run = replace(run, findings=(finding, beside), slots=(differing, *run.slots[1:]), waiting=waiting)
    assert [node.label for node in wait_graph_of(run).nodes] == ["ranks 0, 2", "rank 1"]


def threads(ranks: int):
    """Each rank waits for a thread of its own; those wait for each other in a ring, but that of rank 0 for a rank."""
    story = Story(ranks)
    mains = tuple(Waiting(Who(rank), "the end", None, (), (Who(rank, "reporter"),)) for rank in range(1, ranks))
    helpers = tuple(
        Waiting(Who(rank, "reporter"), "lock", None, (), (Who(rank % (ranks - 1) + 1, "reporter"),))
        for rank in range(ranks)
    )
    return story.run(waiting=(*mains, *helpers, Waiting(Who(0, "reporter"), "lock", None, (), (Who(0),))))


def test_threads_are_nodes_of_their_own():
    graph = wait_graph_of(threads(3))
    assert [node.label for node in graph.nodes] == [
        "rank 0",
        "rank 0, thread reporter",
        "rank 1",
        "rank 1, thread reporter",
        "rank 2",
        "rank 2, thread reporter",
    ]


def test_a_wait_for_any_of_several():
    story = Story(3)
    slot = story.hang(call(0, "recv"), [0], [1, 2])
    waiting = (Waiting(Who(0), "recv #0", None, (slot,), any_suffices=True),)
    ends = tuple(Rank(rank, "waiting" if rank == 0 else "returned") for rank in range(3))
    graph = wait_graph_of(story.run(waiting=waiting, ranks=ends))
    assert [node.label for node in graph.nodes] == ["rank 0", "ranks 1, 2"]
    assert [edge.any_suffices for edge in graph.edges] == [True]


def test_a_wait_for_a_lock_names_who_holds_it():
    story = Story(2)
    waiting = (Waiting(Who(0), 'lock "cache"', None, (), (Who(1),)),)
    graph = wait_graph_of(story.run(waiting=waiting))
    assert [(edge.source, edge.target, edge.label) for edge in graph.edges] == [(0, 1, 'lock "cache"')]


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, LARGEST])
def test_the_boxes_of_a_circle_do_not_overlap(ranks):
    picture = picture_of(wait_graph_of(ring(ranks)))
    assert len(picture.boxes) == ranks
    assert not any(overlap(one, other) for one, other in combinations(picture.boxes, 2))
    for box in picture.boxes:
        assert picture.left < box.x - box.width / 2
        assert box.x + box.width / 2 < picture.left + picture.width
        assert picture.top < box.y - box.height / 2
        assert box.y + box.height / 2 < picture.top + picture.height


@pytest.mark.parametrize("ranks", [3, 4, 7, LARGEST // 2])
def test_the_boxes_of_threads_do_not_overlap(ranks):
    picture = picture_of(wait_graph_of(threads(ranks)))
    assert len(picture.boxes) == 2 * ranks
    assert not any(overlap(one, other) for one, other in combinations(picture.boxes, 2))


def test_the_boxes_beside_a_large_circle_do_not_overlap_it():
    run = ring(LARGEST - 1)
    outside = Waiting(Who(LARGEST - 1), "lock", None, (), (Who(0),))
    picture = picture_of(wait_graph_of(replace(run, waiting=(*run.waiting, outside))))
    assert len(picture.boxes) == LARGEST
    assert not any(overlap(one, other) for one, other in combinations(picture.boxes, 2))


@pytest.mark.parametrize("name", ["group-order-inversion", "exception-on-one-rank"])
def test_the_boxes_of_real_runs_do_not_overlap(name):
    picture = picture_of(wait_graph_of(document(name).runs[0]))
    assert not any(overlap(one, other) for one, other in combinations(picture.boxes, 2))


def test_who_waits_stands_to_the_left_of_whom_it_waits_for():
    picture = picture_of(wait_graph_of(missing_rank()))
    assert picture.boxes[0].x + picture.boxes[0].width / 2 < picture.boxes[1].x - picture.boxes[1].width / 2


def test_the_labels_of_two_who_wait_for_each_other_do_not_overlap():
    picture = picture_of(wait_graph_of(document("group-order-inversion").runs[0]))
    there, back = [arrow for arrow in picture.arrows if {arrow.edge.source, arrow.edge.target} == {0, 1}]
    assert abs(there.y - back.y) > 20
    assert not any(box.y - 21 < arrow.y - 5 < box.y + 21 for arrow in (there, back) for box in picture.boxes)


def test_a_graph_with_too_many_nodes_is_not_drawn():
    assert picture_of(wait_graph_of(ring(LARGEST + 1))) is None


def overlap(one, other):
    """True if two boxes share a point."""
    beside = abs(one.x - other.x) >= (one.width + other.width) / 2
    below = abs(one.y - other.y) >= (one.height + other.height) / 2
    return not (beside or below)
