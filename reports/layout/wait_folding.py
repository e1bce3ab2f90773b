"""A wait-for graph of any size as one that a picture has room for: what matters stays, the rest is folded.

What matters are the cycle, or its two ends if it is long, the culprits, and who stands directly beside them. A folded
node stands for several: for a stretch of the cycle, or for all the others that ended in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpsim.reports.document import End
from ddpsim.reports.layout.wait_nodes import Edge, Node, WaitGraph

LARGEST = 24
"""Nodes of a picture that one can still read."""

_KEPT = 10
"""Nodes that stay, of a graph that is folded. Between those of a cycle are four stretches at most, and beside it there
are as many folded nodes as ends and colours, ten: that makes 24."""
_FIRST, _LAST = 4, 3
"""Nodes that stay at the ends of a long cycle: with the stretch between them eight, which one sees at a glance."""


def folded(graph: WaitGraph) -> WaitGraph:
    """The graph itself, if a picture has room for it; else one of at most `LARGEST` nodes, in which everybody is."""
    if len(graph.nodes) <= LARGEST:
        return graph
    kept = _kept(graph)
    groups = [[node] for node in kept] + _stretches(graph.cycle, kept) + _others(graph, kept)
    return _merged(graph, sorted(groups))


def _kept(graph: WaitGraph) -> set[int]:
    """The nodes that stay. At most half of those outside the cycle are culprits: one should see who waits for them."""
    cycle = graph.cycle
    kept = list(cycle if len(cycle) <= _FIRST + 1 + _LAST else (*cycle[:_FIRST], *cycle[-_LAST:]))
    beside = _beside(graph)
    shown = sorted(_striking(graph, beside).difference(kept))[: (_KEPT - len(kept)) // 2]
    near_shown = [near for node in shown for near in beside[node]]
    near_cycle = sorted({near for node in kept for near in beside[node]}.difference(cycle))
    return set(list(dict.fromkeys([*kept, *shown, *near_shown, *near_cycle]))[:_KEPT])


def _striking(graph: WaitGraph, beside: Sequence[Sequence[int]]) -> set[int]:
    """The culprits, but of a cycle that is all to blame; if there are neither, who is joined with most others."""
    culprits = {index for index, node in enumerate(graph.nodes) if node.is_culprit}
    if not culprits and not graph.cycle:
        return {max(range(len(beside)), key=lambda node: len(beside[node]))}
    return culprits if not culprits.issuperset(graph.cycle) else culprits.difference(graph.cycle)


def _beside(graph: WaitGraph) -> list[list[int]]:
    """For each node, those that wait for it, or that it waits for."""
    beside: list[list[int]] = [[] for _ in graph.nodes]
    for edge in graph.edges:
        beside[edge.source].append(edge.target)
        beside[edge.target].append(edge.source)
    return beside


def _stretches(cycle: Sequence[int], kept: set[int]) -> list[list[int]]:
    """What lies between nodes of the cycle that stay."""
    found: list[list[int]] = [[]]
    for node in cycle:
        if node not in kept:
            found[-1].append(node)
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def _others(graph: WaitGraph, kept: set[int]) -> list[list[int]]:
    """Everybody else, by how they ended, and by whether they are to blame."""
    found: dict[tuple[End, bool], list[int]] = {}
    shown = kept.union(graph.cycle)
    for index, node in enumerate(graph.nodes):
        if index not in shown:
            found.setdefault((node.end, node.is_culprit), []).append(index)
    return list(found.values())


def _merged(graph: WaitGraph, groups: Sequence[Sequence[int]]) -> WaitGraph:
    """The graph with each group of nodes as one."""
    number_of = {node: number for number, group in enumerate(groups) for node in group}
    edges: dict[tuple[int, int], list[Edge]] = {}
    for edge in graph.edges:
        edges.setdefault((number_of[edge.source], number_of[edge.target]), []).append(edge)
    return WaitGraph(
        tuple(_node([graph.nodes[node] for node in group]) for group in groups),
        tuple(_edge(*ends, merged) for ends, merged in edges.items() if ends[0] != ends[1]),
        tuple(dict.fromkeys(number_of[node] for node in graph.cycle)),
    )


def _node(nodes: Sequence[Node]) -> Node:
    if len(nodes) == 1:
        return nodes[0]
    members = sorted(who for node in nodes for who in node.members)
    return Node(tuple(members), nodes[0].end, any(node.is_culprit for node in nodes), is_folded=True)


def _edge(source: int, target: int, edges: Iterable[Edge]) -> Edge:
    """These edges as one; of the cycle, it says what that of the cycle says."""
    edges = list(edges)
    said = [edge for edge in edges if edge.in_cycle] or edges
    labels = {edge.label for edge in said}
    label = said[0].label if len(labels) == 1 else "several calls"
    return Edge(source, target, label, said[0].in_cycle, all(edge.any_suffices for edge in said))
