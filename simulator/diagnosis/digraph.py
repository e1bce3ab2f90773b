"""A directed graph with what diagnosis needs: cycles, reachable nodes and shortest paths.

networkx is not used, because its import takes a fifth of a second. Results are in order of insertion, not of hashes.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

Node = TypeVar("Node")


class Digraph(Generic[Node]):
    """Nodes and edges, each once; adding an edge adds its nodes."""

    def __init__(self, edges: Iterable[tuple[Node, Node]] = ()) -> None:
        self.after: dict[Node, dict[Node, None]] = {}
        """By node, the targets of its edges; the keys are all nodes."""
        self.before: dict[Node, dict[Node, None]] = {}
        """By node, the sources of the edges that lead to it."""
        self.add_edges(edges)

    def add_node(self, node: Node) -> None:
        """Add a node, with or without edges."""
        self.after.setdefault(node, {})
        self.before.setdefault(node, {})

    def add_edges(self, edges: Iterable[tuple[Node, Node]]) -> None:
        """Add an edge from the first to the second node of each pair."""
        for source, target in edges:
            self.add_node(source)
            self.add_node(target)
            self.after[source][target] = None
            self.before[target][source] = None

    def subgraph(self, nodes: Iterable[Node]) -> "Digraph[Node]":
        """Return the subgraph of these nodes."""
        part: Digraph[Node] = Digraph()
        for node in nodes:
            part.add_node(node)
        part.add_edges((node, after) for node in part.after for after in self.after[node] if after in part.after)
        return part

    def strong_components(self) -> list[dict[Node, None]]:
        """Return the strongly connected components of more than one node (all their nodes are on cycles).

        Kosaraju's algorithm: of a depth-first search, take the nodes in reverse order of finishing. Each begins a
        component, which consists of the new nodes that a backward search from it finds.
        """
        taken: dict[Node, None] = {}
        found = []
        for node in reversed(self._nodes_in_finishing_order()):
            if node not in taken:
                component = _reachable_nodes(self.before, [node], taken)
                taken |= component
                if len(component) > 1:
                    found.append(component)
        return found

    def _nodes_in_finishing_order(self) -> list[Node]:
        """Return all nodes in the order in which a depth-first search finishes them."""
        finished: list[Node] = []
        seen = set()
        for root in self.after:
            path = [] if root in seen else [(root, iter(self.after[root]))]
            seen.add(root)
            while path:
                step = next((each for each in path[-1][1] if each not in seen), None)
                if step is None:
                    finished.append(path.pop()[0])
                else:
                    seen.add(step)
                    path.append((step, iter(self.after[step])))
        return finished

    def ancestors_of(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """Return `nodes` and all nodes with a path to at least one of `nodes`."""
        return _reachable_nodes(self.before, nodes, {})

    def descendants_of(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """Return `nodes` and all nodes that are reachable from at least one of `nodes`."""
        return _reachable_nodes(self.after, nodes, {})

    def shortest_path(self, start: Node, end: Node) -> list[Node]:
        """Return the nodes of a shortest path with both ends; there must be a path from `start` to `end`."""
        step: dict[Node, Node] = {}
        layer = [end]
        while layer and start != end and start not in step:
            found: dict[Node, Node] = {}
            for after in layer:
                found |= {node: after for node in self.before[after] if node not in step and node not in found}
            step |= found
            layer = list(found)
        path = [start]
        while path[-1] != end:
            path.append(step[path[-1]])
        return path


def _reachable_nodes(
    edges: Mapping[Node, Iterable[Node]], starts: Iterable[Node], without: Mapping[Node, None]
) -> dict[Node, None]:
    """Return `starts` and all nodes reachable from them by `edges`, without entering the nodes of `without`."""
    reached = dict.fromkeys(starts)
    left = list(reached)
    while left:
        new = {node: None for node in edges[left.pop()] if node not in reached and node not in without}
        reached |= new
        left.extend(new)
    return reached
