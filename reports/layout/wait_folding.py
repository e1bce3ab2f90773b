"""Reduces a large wait-for graph to one that fits a picture: the important nodes are kept, the others are folded.

Important are the cycle (its two ends if it is long), the culprits, and the direct neighbours of both. A folded node
replaces several: a part of the cycle, or all other nodes that ended in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpsim.reports.document import End
from ddpsim.reports.layout.wait_nodes import DrawnWaitGraph, WaitEdge, WaitNode

LARGEST = 24
"""The largest number of nodes in a readable picture."""

_KEPT = 10
"""Nodes that are kept. With at most four folded parts of the cycle, and ten folded nodes outside of it (five ends,
blamed or not), that is 24."""
_FIRST, _LAST = 4, 3
"""Nodes that are kept at the ends of a long cycle: with the folded node between them, eight."""


def folded(graph: DrawnWaitGraph) -> DrawnWaitGraph:
    """Return the graph itself, or, if it is too large, a graph of at most `LARGEST` nodes that includes all ranks."""
    if len(graph.nodes) <= LARGEST:
        return graph
    kept = _kept(graph)
    groups = [[node] for node in kept] + _stretches(graph.cycle, kept) + _others(graph, kept)
    return _merged(graph, sorted(groups))


def _kept(graph: DrawnWaitGraph) -> set[int]:
    """Return the kept nodes. At most half of those outside the cycle are culprits, to leave room for waiting ranks."""
    cycle = graph.cycle
    kept = list(cycle if len(cycle) <= _FIRST + 1 + _LAST else (*cycle[:_FIRST], *cycle[-_LAST:]))
    beside = _beside(graph)
    shown = sorted(_striking(graph, beside).difference(kept))[: (_KEPT - len(kept)) // 2]
    near_shown = [near for node in shown for near in beside[node]]
    near_cycle = sorted({near for node in kept for near in beside[node]}.difference(cycle))
    return set(list(dict.fromkeys([*kept, *shown, *near_shown, *near_cycle]))[:_KEPT])


def _striking(graph: DrawnWaitGraph, beside: Sequence[Sequence[int]]) -> set[int]:
    """Return the culprits, without the cycle if all of it is to blame; without both, the node with most edges."""
    culprits = {index for index, node in enumerate(graph.nodes) if node.is_culprit}
    if not culprits and not graph.cycle:
        return {max(range(len(beside)), key=lambda node: len(beside[node]))}
    return culprits if not culprits.issuperset(graph.cycle) else culprits.difference(graph.cycle)


def _beside(graph: DrawnWaitGraph) -> list[list[int]]:
    beside: list[list[int]] = [[] for _ in graph.nodes]
    for edge in graph.edges:
        beside[edge.source].append(edge.target)
        beside[edge.target].append(edge.source)
    return beside


def _stretches(cycle: Sequence[int], kept: set[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for node in cycle:
        if node not in kept:
            found[-1].append(node)
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def _others(graph: DrawnWaitGraph, kept: set[int]) -> list[list[int]]:
    found: dict[tuple[End, bool], list[int]] = {}
    shown = kept.union(graph.cycle)
    for index, node in enumerate(graph.nodes):
        if index not in shown:
            found.setdefault((node.end, node.is_culprit), []).append(index)
    return list(found.values())


def _merged(graph: DrawnWaitGraph, groups: Sequence[Sequence[int]]) -> DrawnWaitGraph:
    number_of = {node: number for number, group in enumerate(groups) for node in group}
    edges: dict[tuple[int, int], list[WaitEdge]] = {}
    for edge in graph.edges:
        edges.setdefault((number_of[edge.source], number_of[edge.target]), []).append(edge)
    return DrawnWaitGraph(
        tuple(_node([graph.nodes[node] for node in group]) for group in groups),
        tuple(_edge(*ends, merged) for ends, merged in edges.items() if ends[0] != ends[1]),
        tuple(dict.fromkeys(number_of[node] for node in graph.cycle)),
    )


def _node(nodes: Sequence[WaitNode]) -> WaitNode:
    if len(nodes) == 1:
        return nodes[0]
    members = sorted(who for node in nodes for who in node.members)
    return WaitNode(tuple(members), nodes[0].end, any(node.is_culprit for node in nodes), is_folded=True)


def _edge(source: int, target: int, edges: Iterable[WaitEdge]) -> WaitEdge:
    """Merge edges into one. If one of them is in the cycle, the label is that of the cycle's edge."""
    edges = list(edges)
    said = [edge for edge in edges if edge.in_cycle] or edges
    labels = {edge.label for edge in said}
    label = said[0].label if len(labels) == 1 else "several calls"
    return WaitEdge(source, target, label, said[0].in_cycle, all(edge.any_suffices for edge in said))
