"""A directed graph, and what diagnosis asks of one: who is on a cycle, who leads to whom, and on which shortest path.

networkx has the answers, too, and takes a fifth of a second to import, which every run would pay; loaded only when a
run fails, it would be imported in the world of the rank that ran last, where a test may have patched what imports need.
Everything here is in order of insertion, so what is found first does not hang on hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

Node = TypeVar("Node")


class Digraph(Generic[Node]):
    """Nodes and edges, each once; an edge brings its nodes."""

    __slots__ = ("after", "before")

    def __init__(self, edges: Iterable[tuple[Node, Node]] = ()) -> None:
        self.after: dict[Node, dict[Node, None]] = {}
        """Of each node those that its edges lead to; the keys are all nodes."""
        self.before: dict[Node, dict[Node, None]] = {}
        """Of each node those whose edges lead to it."""
        self.add_edges(edges)

    def add_node(self, node: Node) -> None:
        """A node that need not have edges."""
        self.after.setdefault(node, {})
        self.before.setdefault(node, {})

    def add_edges(self, edges: Iterable[tuple[Node, Node]]) -> None:
        """Edges from the first to the second of each pair."""
        for source, target in edges:
            self.add_node(source)
            self.add_node(target)
            self.after[source][target] = None
            self.before[target][source] = None

    def within(self, nodes: Iterable[Node]) -> Digraph[Node]:
        """These nodes, and the edges among them."""
        part: Digraph[Node] = Digraph()
        for node in nodes:
            part.add_node(node)
        part.add_edges((node, after) for node in part.after for after in self.after[node] if after in part.after)
        return part

    def knots(self) -> list[dict[Node, None]]:
        """The strongly connected components of more than one node: all of a knot are on cycles with each other.

        By Kosaraju's algorithm: whoever finishes last in a search forward begins a component, which is what a search
        backward finds from there.
        """
        taken: dict[Node, None] = {}
        found = []
        for node in reversed(self._in_order_of_finishing()):
            if node not in taken:
                component = _reached(self.before, [node], taken)
                taken |= component
                if len(component) > 1:
                    found.append(component)
        return found

    def _in_order_of_finishing(self) -> list[Node]:
        """All nodes, in the order in which a search depth first leaves them."""
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

    def ahead_of(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """These nodes, and all from which a path leads to one of them."""
        return _reached(self.before, nodes, {})

    def behind(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """These nodes, and all to which a path leads from one of them."""
        return _reached(self.after, nodes, {})

    def shortest_path(self, start: Node, end: Node) -> list[Node]:
        """The nodes of a shortest path, both ends included; `start` has to lead to `end`."""
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


def _reached(
    edges: Mapping[Node, Iterable[Node]], starts: Iterable[Node], without: Mapping[Node, None]
) -> dict[Node, None]:
    """The nodes to which `edges` lead from `starts`, which are among them; `without` are not entered."""
    reached = dict.fromkeys(starts)
    left = list(reached)
    while left:
        new = {node: None for node in edges[left.pop()] if node not in reached and node not in without}
        reached |= new
        left.extend(new)
    return reached
