"""What diagnosis asks of a graph, against networkx."""

import random

import networkx as nx

from ddpsim.simulator.diagnosis.digraph import Digraph


def test_answers_are_those_of_networkx():
    draw = random.Random(7)
    for _ in range(100):
        size = draw.randint(1, 12)
        edges = [(draw.randrange(size), draw.randrange(size)) for _ in range(draw.randint(0, 2 * size))]
        ours, theirs = Digraph(edges), nx.DiGraph(edges)
        knots = {frozenset(part) for part in nx.strongly_connected_components(theirs) if len(part) > 1}
        assert set(map(frozenset, ours.strong_components())) == knots
        for node in theirs:
            assert set(ours.ancestors_of([node])) == {node} | nx.ancestors(theirs, node)
            assert set(ours.descendants_of([node])) == {node} | nx.descendants(theirs, node)
            for end, length in nx.single_source_shortest_path_length(theirs, node).items():
                path = ours.shortest_path(node, end)
                assert nx.is_path(theirs, path)
                assert (path[0], path[-1], len(path) - 1) == (node, end, length)
        part = ours.subgraph(draw.sample(list(ours.after), len(theirs) // 2)).after
        assert {(source, end) for source, ends in part.items() for end in ends} == set(theirs.subgraph(part).edges)
