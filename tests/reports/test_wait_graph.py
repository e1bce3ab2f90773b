"""The wait-for graph: who is one node, which edges there are, and a picture in which nothing overlaps."""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from ddpsim.reports.document import Finding, Rank, Waiting
from ddpsim.reports.layout.wait_layout import pictures_of
from ddpsim.reports.layout.wait_nodes import LARGEST, DrawnWaitGraph, WaitEdge, WaitNode, fold_graph, wait_graph_of
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.verdict import Verdict
from tests.kit.rows import rows
from tests.reports.examples import MISMATCH, THREADS, document
from tests.reports.made import Story, call, missing_rank, passing


def ring(ranks: int):
    """Each rank waits for the next one, in a group of both."""
    story = Story(ranks)
    slots = [story.hang(call(0, group=f"{rank}"), [rank], [(rank + 1) % ranks]) for rank in range(ranks)]
    waiting = tuple(Waiting(RankOrThread(rank), "all_reduce #0", None, (slot,)) for rank, slot in enumerate(slots))
    finding = Finding("deadlock.cycle", Verdict.FAIL, tuple(range(ranks)), "", "", cycle=tuple(range(ranks)))
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


def test_a_cycle_is_marked_and_ranks_on_both_sides_of_an_inversion_are_two_nodes():
    graph = wait_graph_of(document("group-order-inversion").runs[0])
    assert [node.label for node in graph.nodes] == ["ranks 0, 2", "ranks 1, 3"]
    assert [(edge.source, edge.target, edge.in_cycle) for edge in graph.edges] == [(0, 1, True), (1, 0, True)]
    graph = wait_graph_of(ring(3))
    assert [(edge.source, edge.target, edge.label, edge.in_cycle) for edge in graph.edges] == [
        (0, 1, 'all_reduce #0 "0"', True),
        (1, 2, 'all_reduce #0 "1"', True),
        (2, 0, 'all_reduce #0 "2"', True),
    ]


@pytest.mark.parametrize("name", [MISMATCH, THREADS, "rank0-eval-through-wrapper-with-buffers"])
def test_where_calls_differ_nobody_waits_for_one_to_come(name):
    assert wait_graph_of(passing()) is None
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
    mains = tuple(
        Waiting(RankOrThread(rank), "the end", None, (), (RankOrThread(rank, "reporter"),)) for rank in range(1, ranks)
    )
    helpers = tuple(
        Waiting(RankOrThread(rank, "reporter"), "lock", None, (), (RankOrThread(rank % (ranks - 1) + 1, "reporter"),))
        for rank in range(ranks)
    )
    return story.run(
        waiting=(*mains, *helpers, Waiting(RankOrThread(0, "reporter"), "lock", None, (), (RankOrThread(0),)))
    )


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
    waiting = (Waiting(RankOrThread(0), "recv #0", None, (slot,), any_suffices=True),)
    ends = tuple(Rank(rank, "waiting" if rank == 0 else "returned") for rank in range(3))
    graph = wait_graph_of(story.run(waiting=waiting, ranks=ends))
    assert [node.label for node in graph.nodes] == ["rank 0", "ranks 1, 2"]
    assert [edge.any_suffices for edge in graph.edges] == [True]


BESIDE = Waiting(RankOrThread(LARGEST - 1), "lock", None, (), (RankOrThread(0),))
DRAWN = (
    *((ring(ranks), ranks) for ranks in (2, 3, 4, 7, LARGEST)),
    *((threads(ranks), 2 * ranks) for ranks in (3, 4, 7, LARGEST // 2)),
    (replace(ring(LARGEST - 1), waiting=(*ring(LARGEST - 1).waiting, BESIDE)), LARGEST),
    (document("group-order-inversion").runs[0], 2),
    (document("exception-on-one-rank").runs[0], 2),
    (ring(1_024), 8),
    (threads(64), 13),
)


def picture_of(graph):
    """The picture for a wide screen."""
    return next(iter(pictures_of(graph).values()))


@rows(("run", "count"), DRAWN)
def test_boxes_stand_within_the_picture_and_do_not_overlap(run, count):
    picture = picture_of(wait_graph_of(run))
    assert len(picture.boxes) == count
    assert not any(overlap(one, other) for one, other in combinations(picture.boxes, 2))
    for box in picture.boxes:
        assert picture.left < box.x - box.width / 2
        assert box.x + box.width / 2 < picture.left + picture.width
        assert picture.top < box.y - box.height / 2
        assert box.y + box.height / 2 < picture.top + picture.height


def test_who_waits_stands_to_the_left_of_whom_it_waits_for():
    picture = picture_of(wait_graph_of(missing_rank()))
    assert picture.boxes[0].x + picture.boxes[0].width / 2 < picture.boxes[1].x - picture.boxes[1].width / 2


def test_the_labels_of_two_who_wait_for_each_other_do_not_overlap():
    picture = picture_of(wait_graph_of(document("group-order-inversion").runs[0]))
    there, back = [arrow for arrow in picture.arrows if {arrow.edge.source, arrow.edge.target} == {0, 1}]
    assert abs(there.y - back.y) > 20
    assert not any(box.y - 21 < arrow.y - 5 < box.y + 21 for arrow in (there, back) for box in picture.boxes)


def test_a_rank_that_waits_for_one_of_the_circle_stands_on_its_side():
    run = ring(12)
    outside = [Waiting(RankOrThread(12 + rank), "lock", None, (), (RankOrThread(rank),)) for rank in (3, 9)]
    boxes = {box.label: box for box in picture_of(wait_graph_of(replace(run, waiting=(*run.waiting, *outside)))).boxes}
    assert boxes["rank 9"].x < 0.5 * (boxes["rank 9"].x + boxes["rank 3"].x) < boxes["rank 3"].x
    assert boxes["rank 21"].x < boxes["rank 9"].x
    assert boxes["rank 3"].x < boxes["rank 15"].x
    assert [boxes["rank 21"].y, boxes["rank 15"].y] == [boxes["rank 9"].y, boxes["rank 3"].y]


@rows("ranks", [3, 8, LARGEST, 64])
def test_the_labels_of_a_circle_stand_on_no_box(ranks):
    picture = picture_of(wait_graph_of(ring(ranks)))
    for arrow in picture.arrows:
        length = 6.5 * len(arrow.label)
        start = arrow.x - {"start": 0, "middle": length / 2, "end": length}[arrow.anchor]
        for box in picture.boxes:
            beside = start + length <= box.x - box.width / 2 or start >= box.x + box.width / 2
            assert beside or abs(box.y - (arrow.y - 3)) > box.height / 2 + 8


def test_nothing_is_folded_as_long_as_there_is_room():
    for graph in map(wait_graph_of, (ring(LARGEST), threads(LARGEST // 2))):
        assert fold_graph(graph) is graph
    assert len(fold_graph(wait_graph_of(ring(LARGEST + 1))).nodes) == 8


@pytest.mark.parametrize(("ranks", "count"), [(64, "57 ranks wait"), (1_024, "1,017 ranks wait")])
def test_a_long_cycle_is_drawn_as_its_two_ends_and_a_stretch(ranks, count):
    graph = wait_graph_of(ring(ranks))
    picture = picture_of(graph)
    ends = [f"rank {rank}" for rank in (ranks - 3, ranks - 2, ranks - 1)]
    labels = ["rank 0", "rank 1", "rank 2", "rank 3", f"ranks 4-{ranks - 4}", *ends]
    assert [box.label for box in picture.boxes] == labels
    assert [box.state for box in picture.boxes] == ["waits"] * 4 + [count] + ["waits"] * 3
    assert [box.node.is_folded for box in picture.boxes] == [False] * 4 + [True] + [False] * 3
    groups = [0, 1, 2, 3, ranks - 4, ranks - 3, ranks - 2, ranks - 1]
    assert [(arrow.edge.source, arrow.edge.target, arrow.label) for arrow in picture.arrows] == [
        (number, (number + 1) % 8, f'all_reduce #0 "{group}"') for number, group in enumerate(groups)
    ]
    assert all(arrow.edge.in_cycle for arrow in picture.arrows)


def test_of_many_threads_the_ring_and_some_who_wait_for_it_are_drawn():
    graph = wait_graph_of(threads(64))
    picture = picture_of(graph)
    folds = [(box.label, box.state) for box in picture.boxes if box.node.is_folded]
    assert folds == [("ranks 3-63", "61 ranks wait"), ("ranks 5-60, thread reporter", "56 threads wait")]
    assert len(picture.boxes) == 7 + 3 + 2 + 1  # of the ring, beside it, folded, and rank 0, which does not wait
    assert everybody(fold_graph(graph)) == everybody(graph)


def nodes(count, end="waiting", culprits=()):
    """Ranks that are nodes of their own."""
    return tuple(WaitNode((RankOrThread(rank),), end, rank in culprits) for rank in range(count))


def test_a_culprit_within_a_long_cycle_stays_with_those_beside_it():
    edges = tuple(WaitEdge(rank, (rank + 1) % 100, "recv", in_cycle=True) for rank in range(100))
    graph = fold_graph(DrawnWaitGraph(nodes(100, culprits=[50]), edges, tuple(range(100))))
    assert [node.label for node in graph.nodes] == [
        *("rank 0", "rank 1", "rank 2", "rank 3", "ranks 4-48", "rank 49", "rank 50", "rank 51"),
        *("ranks 52-96", "rank 97", "rank 98", "rank 99"),
    ]
    assert [node.is_culprit for node in graph.nodes] == [number == 6 for number in range(12)]
    assert graph.cycle == tuple(range(12))
    assert graph.edges == tuple(WaitEdge(number, (number + 1) % 12, "recv", in_cycle=True) for number in range(12))


def test_who_is_neither_culprit_nor_beside_one_is_folded_by_how_it_ended():
    pairs = nodes(60, culprits=range(1, 60, 2))
    ended = tuple(replace(node, end="returned") if rank % 2 else node for rank, node in enumerate(pairs))
    edges = tuple(WaitEdge(rank, rank + 1, f"recv #{rank % 4}", in_cycle=False) for rank in range(0, 60, 2))
    picture = picture_of(DrawnWaitGraph(ended, edges))
    assert [box.state for box in picture.boxes] == ["waits", "returned"] * 5 + ["25 ranks wait", "25 ranks returned"]
    assert [box.node.is_culprit for box in picture.boxes] == [False, True] * 6
    # From one fold to the other they wait in different calls.
    assert [arrow.label for arrow in picture.arrows] == [f"recv #{rank % 4}" for rank in range(0, 10, 2)] + [
        "several calls"
    ]
    assert [picture.boxes[10].label, picture.boxes[11].label] == [
        "ranks 10, 12, 14, 16, 18, 20, 22,\N{HORIZONTAL ELLIPSIS}",
        "ranks 11, 13, 15, 17, 19, 21, 23,\N{HORIZONTAL ELLIPSIS}",
    ]


@pytest.mark.parametrize(("any_of", "is_any"), [((True, True), True), ((True, False), False)])
def test_merged_edges_that_say_the_same_say_it_once(any_of, is_any):
    edges = tuple(WaitEdge(rank, 0, "recv #0", in_cycle=False, any_suffices=any_of[rank % 2]) for rank in range(1, 40))
    graph = fold_graph(DrawnWaitGraph(nodes(40, culprits=[0]), edges))
    assert [node.label for node in graph.nodes] == [f"rank {rank}" for rank in range(10)] + ["ranks 10-39"]
    assert graph.edges[-1] == WaitEdge(10, 0, "recv #0", in_cycle=False, any_suffices=is_any)


def test_where_nobody_is_to_blame_the_one_that_most_wait_for_stays():
    edges = tuple(WaitEdge(rank, 7, "lock", in_cycle=False) for rank in range(40) if rank != 7)
    graph = fold_graph(DrawnWaitGraph(nodes(40), edges))
    assert [node.label for node in graph.nodes] == [f"rank {rank}" for rank in range(10)] + ["ranks 10-39"]


@rows("seed", range(60))
def test_whatever_is_folded_everybody_is_there_once_and_waits_for_whom_it_waited(seed):
    draw = random.Random(seed)
    count = draw.randint(LARGEST + 1, 90)
    joined = {tuple(draw.sample(range(count), 2)) for _ in range(draw.randint(1, 3 * count))}
    cycle = tuple(draw.sample(range(count), draw.choice([0, 2, 5, 9, count])))
    around = set(pairwise((*cycle, *cycle[:1])))
    ends = ("returned", "raised", "waiting", "stopped", "unknown")
    everyone = tuple(WaitNode((RankOrThread(rank),), draw.choice(ends), draw.random() < 0.3) for rank in range(count))
    edges = (WaitEdge(*pair, f"call {sum(pair) % 3}", pair in around) for pair in sorted(joined | around))
    graph = DrawnWaitGraph(everyone, tuple(edges), cycle)
    small = fold_graph(graph)
    assert len(small.nodes) <= LARGEST
    assert everybody(small) == everybody(graph)
    index = {who: number for number, node in enumerate(small.nodes) for who in node.members}
    pairs = {(index[RankOrThread(edge.source)], index[RankOrThread(edge.target)]) for edge in graph.edges}
    assert [(edge.source, edge.target) for edge in small.edges if edge.source == edge.target] == []
    assert sorted((edge.source, edge.target) for edge in small.edges) == sorted({(a, b) for a, b in pairs if a != b})
    assert set(small.cycle) == {index[RankOrThread(rank)] for rank in cycle}
    culprits = {index[who] for node in graph.nodes if node.is_culprit for who in node.members}
    assert {number for number, node in enumerate(small.nodes) if node.is_culprit} == culprits
    assert not any(overlap(one, other) for one, other in combinations(picture_of(graph).boxes, 2))


def test_of_thousands_that_wait_for_thousands_the_graph_is_made_at_once():
    story = Story(2_000)
    halves = range(1_000), range(1_000, 2_000)
    slots = [story.hang(call(0, group=f"{i}"), halves[i], halves[1 - i]) for i in (0, 1)]
    waiting = tuple(
        Waiting(RankOrThread(rank), "all_reduce #0", None, (slots[rank // 1_000],)) for rank in range(2_000)
    )
    graph = wait_graph_of(story.run(waiting=waiting))
    assert [node.label for node in graph.nodes] == ["ranks 0-999", "ranks 1000-1999"]
    assert [(edge.source, edge.target) for edge in graph.edges] == [(0, 1), (1, 0)]
    assert graph.cycle == (0, 1)


def test_a_cycle_that_no_finding_names_is_found_behind_those_who_wait_for_it():
    story = Story(6)
    waits = {0: 3, 3: 5, 5: 2, 2: 4, 4: 5, 1: 0}  # 2, 4, 5 wait for each other
    waiting = tuple(
        Waiting(RankOrThread(rank), "lock", None, (), (RankOrThread(waits[rank]),)) for rank in sorted(waits)
    )
    assert wait_graph_of(story.run(waiting=waiting)).cycle == (2, 4, 5)
    ended = tuple(each for each in waiting if each.who.rank != 2)
    assert wait_graph_of(story.run(waiting=ended)).cycle == ()


def everybody(graph):
    """The members of all nodes; who is in two is there twice."""
    return sorted(who for node in graph.nodes for who in node.members)


def overlap(one, other):
    """True if two boxes share a point."""
    beside = abs(one.x - other.x) >= (one.width + other.width) / 2
    below = abs(one.y - other.y) >= (one.height + other.height) / 2
    return not (beside or below)
