"""Builds the wait-for graph at the end of the run: which ranks waited for which.

Ranks share a node if they wait in the same slots or for the same ranks, and the same ranks wait for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias

import networkx as nx

from ddpsim.reports.document import End, Run, Waiting
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.wording import rank_list, values_by_key

Digraph: TypeAlias = "nx.DiGraph[int]"

_WaitKey = tuple[object, ...]
"""The key of a wait: ranks with equal keys wait for the same thing. A thread has its own key."""


@dataclass(frozen=True, slots=True)
class WaitNode:
    """Ranks that wait for the same thing, or a thread; a folded node replaces several nodes."""

    members: tuple[RankOrThread, ...]
    end: End
    is_culprit: bool = False
    is_folded: bool = False

    @property
    def label(self) -> str:
        """The names of the node's ranks and threads."""
        ranks = rank_list({who.rank for who in self.members})
        threads = {who.thread for who in self.members}
        if len(threads) > 1:
            return f"{ranks} and threads" if "" in threads else f"threads of {ranks}"
        thread = self.members[0].thread
        return f"{ranks}, thread {thread}" if thread else ranks


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """The source node waits for the target node; both are indices of nodes."""

    source: int
    target: int
    label: str
    """What the source waits for, such as "all_reduce #3"."""
    in_cycle: bool
    any_suffices: bool = False
    """True if the source needs only one of its targets."""


@dataclass(frozen=True, slots=True)
class DrawnWaitGraph:
    """A wait-for graph, with nodes in the order of their ranks."""

    nodes: tuple[WaitNode, ...]
    edges: tuple[WaitEdge, ...]
    cycle: tuple[int, ...] = ()
    """Nodes that wait for each other, in the order of the finding's cycle if it has one, else of the first cycle."""


def wait_graph_of(run: Run) -> DrawnWaitGraph | None:
    """Return the wait-for graph of a run; None if no rank waited for another, as when matched calls differ."""
    if is_mismatch(run):
        return None
    targets = _targets_of_waits(run)
    waiting = [each for each in run.waiting if targets[_wait_key(each)]]
    if not waiting:
        return None
    nodes = _make_nodes(run, _group_ranks_into_nodes(waiting, targets))
    edges = _make_edges(run, nodes, waiting, targets)
    cyclic = [edge for edge in edges if edge.in_cycle]
    return DrawnWaitGraph(nodes, edges, _find_cycle(len(nodes), cyclic) or _find_cycle(len(nodes), edges))


def is_mismatch(run: Run) -> bool:
    """Return True if the run's first finding is about matched calls with different arguments."""
    return run.leading is not None and run.leading.is_mismatch


def _wait_key(waiting: Waiting) -> _WaitKey:
    return waiting.slots, waiting.waits_for, waiting.what, waiting.who if waiting.who.thread else None


def _targets_of_waits(run: Run) -> dict[_WaitKey, tuple[RankOrThread, ...]]:
    """Return the ranks that each wait is for, once for equal waits, since thousands may wait for thousands."""
    found: dict[_WaitKey, tuple[RankOrThread, ...]] = {}
    for waiting in run.waiting:
        if (what := _wait_key(waiting)) not in found:
            missing = (RankOrThread(rank) for index in waiting.slots for rank in run.slots[index].missing)
            found[what] = (*waiting.waits_for, *missing)
    return found


def _group_ranks_into_nodes(
    waiting: Iterable[Waiting], targets: Mapping[_WaitKey, Iterable[RankOrThread]]
) -> list[list[RankOrThread]]:
    waits = {each.who: _wait_key(each) for each in waiting}
    awaited: dict[RankOrThread, dict[_WaitKey, None]] = {}
    for what in dict.fromkeys(map(_wait_key, waiting)):
        for target in targets[what]:
            awaited.setdefault(target, {})[what] = None
    keys = (
        ((waits.get(who), tuple(awaited.get(who, ())), who if who.thread else None), who)
        for who in sorted({*waits, *awaited})
    )
    return list(values_by_key(keys).values())


def _make_nodes(run: Run, members: Iterable[list[RankOrThread]]) -> tuple[WaitNode, ...]:
    culprits = run.culprits
    waiting = {each.who for each in run.waiting}
    ended: dict[int, End] = {rank.rank: rank.end for rank in run.ranks}
    return tuple(
        WaitNode(
            tuple(alike),
            "waiting" if alike[0] in waiting else ended.get(alike[0].rank, "unknown"),
            any(who.rank in culprits and not who.thread for who in alike),
        )
        for alike in members
    )


def _make_edges(
    run: Run, nodes: Sequence[WaitNode], waiting: Iterable[Waiting], targets: Mapping[_WaitKey, Iterable[RankOrThread]]
) -> tuple[WaitEdge, ...]:
    node_of = {who: index for index, node in enumerate(nodes) for who in node.members}
    cycle = next((finding.cycle for finding in run.findings if finding.cycle), ())
    circle = {
        (node_of.get(RankOrThread(one)), node_of.get(RankOrThread(other)))
        for one, other in pairwise((*cycle, *cycle[:1]))
    }
    has_groups = len({run.slots[index].group for each in run.waiting for index in each.slots}) > 1
    first: dict[tuple[int, _WaitKey], Waiting] = {}
    for each in waiting:
        first.setdefault((node_of[each.who], _wait_key(each)), each)
    edges: dict[tuple[int, int], WaitEdge] = {}
    for (source, what), each in first.items():
        label = _wait_label(run, each, has_groups=has_groups)
        for target in targets[what]:
            ends = source, node_of[target]
            edges.setdefault(ends, WaitEdge(*ends, label, ends in circle, each.any_suffices))
    return tuple(edges.values())


def _wait_label(run: Run, waiting: Waiting, *, has_groups: bool) -> str:
    """Return the text of a node: the call that its ranks wait for, with the group if the run has several groups."""
    slot = run.slots[waiting.slots[0]] if waiting.slots else None
    if slot is None or not slot.issues:
        return waiting.what
    call = run.issued_call(slot.issues[0])
    more = f" or {len(waiting.slots) - 1} more" if len(waiting.slots) > 1 else ""
    group = f' "{slot.group}"' if has_groups else ""
    return f"{call.operation} #{call.sequence}{group}{more}"


def _find_cycle(nodes: int, edges: Iterable[WaitEdge]) -> tuple[int, ...]:
    """Return the first cycle of the graph, starting at its lowest node; () if there is none."""
    graph = digraph(nodes, sorted(edges, key=lambda edge: (edge.source, edge.target)))
    try:
        found = [source for source, _ in nx.find_cycle(graph)]
    except nx.NetworkXNoCycle:
        return ()
    first = found.index(min(found))
    return (*found[first:], *found[:first])


def digraph(nodes: int, edges: Iterable[WaitEdge]) -> Digraph:
    """Return a networkx graph with these nodes and edges, without edges from a node to itself."""
    graph: Digraph = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from((edge.source, edge.target) for edge in edges if edge.source != edge.target)
    return graph


LARGEST = 24
"""The largest number of nodes in a readable picture."""

_KEPT = 10
"""The number of nodes kept: with at most four folded parts of the cycle and ten other folded nodes, 24."""
_FIRST, _LAST = 4, 3
"""The number of nodes kept at the beginning and at the end of a long cycle: with a folded node between, eight."""


def fold_graph(graph: DrawnWaitGraph) -> DrawnWaitGraph:
    """Return the graph itself, or, if it is too large, a graph of at most `LARGEST` nodes that includes all ranks."""
    if len(graph.nodes) <= LARGEST:
        return graph
    kept = _nodes_to_keep(graph)
    folded = [list(part) for is_kept, part in groupby(graph.cycle, kept.__contains__) if not is_kept]
    return _merge_groups(graph, sorted([[node] for node in kept] + folded + _group_other_nodes(graph, kept)))


def _nodes_to_keep(graph: DrawnWaitGraph) -> set[int]:
    """Return the nodes to keep. Of those outside the cycle, at most half are to blame: waiting ranks need room."""
    cycle = graph.cycle
    kept = list(cycle if len(cycle) <= _FIRST + 1 + _LAST else (*cycle[:_FIRST], *cycle[-_LAST:]))
    beside = _neighbours(graph)
    shown = sorted(_important_nodes(graph, beside).difference(kept))[: (_KEPT - len(kept)) // 2]
    near_shown = [near for node in shown for near in beside[node]]
    near_cycle = sorted({near for node in kept for near in beside[node]}.difference(cycle))
    return set(list(dict.fromkeys([*kept, *shown, *near_shown, *near_cycle]))[:_KEPT])


def _important_nodes(graph: DrawnWaitGraph, beside: Sequence[Sequence[int]]) -> set[int]:
    """Return the nodes to blame, without a cycle if all of it is to blame; else the node with most edges."""
    culprits = {index for index, node in enumerate(graph.nodes) if node.is_culprit}
    if not culprits and not graph.cycle:
        return {max(range(len(beside)), key=lambda node: len(beside[node]))}
    return culprits if not culprits.issuperset(graph.cycle) else culprits.difference(graph.cycle)


def _neighbours(graph: DrawnWaitGraph) -> list[list[int]]:
    beside: list[list[int]] = [[] for _ in graph.nodes]
    for edge in graph.edges:
        beside[edge.source].append(edge.target)
        beside[edge.target].append(edge.source)
    return beside


def _group_other_nodes(graph: DrawnWaitGraph, kept: set[int]) -> list[list[int]]:
    others = ((index, node) for index, node in enumerate(graph.nodes) if index not in kept.union(graph.cycle))
    return list(values_by_key(((node.end, node.is_culprit), index) for index, node in others).values())


def _merge_groups(graph: DrawnWaitGraph, groups: Sequence[Sequence[int]]) -> DrawnWaitGraph:
    number_of = {node: number for number, group in enumerate(groups) for node in group}
    edges = values_by_key(((number_of[edge.source], number_of[edge.target]), edge) for edge in graph.edges)
    return DrawnWaitGraph(
        tuple(_merge_nodes([graph.nodes[node] for node in group]) for group in groups),
        tuple(_merge_edges(*ends, merged) for ends, merged in edges.items() if ends[0] != ends[1]),
        tuple(dict.fromkeys(number_of[node] for node in graph.cycle)),
    )


def _merge_nodes(nodes: Sequence[WaitNode]) -> WaitNode:
    if len(nodes) == 1:
        return nodes[0]
    members = sorted(who for node in nodes for who in node.members)
    return WaitNode(tuple(members), nodes[0].end, any(node.is_culprit for node in nodes), is_folded=True)


def _merge_edges(source: int, target: int, edges: Iterable[WaitEdge]) -> WaitEdge:
    """Merge several edges into one. If one of them is in the cycle, its label is kept."""
    edges = list(edges)
    said = [edge for edge in edges if edge.in_cycle] or edges
    label = said[0].label if len({edge.label for edge in said}) == 1 else "several calls"
    return WaitEdge(source, target, label, said[0].in_cycle, all(edge.any_suffices for edge in said))
