"""The wait-for graph: who waits for whom, and its readings.

Nodes are ranks and the meetings they wait in; an edge goes from a rank to its meeting and from a meeting to each rank
that has not come. The meetings in between keep the graph small: half of 1,024 ranks waiting for the other half are
1,024 edges, not 262,144.

An AND node needs all its successors, an OR node (a receive from any source, a store key that anybody may set) needs
one. The graph is only built when no rank is enabled and the clock has nothing to fire, so every waiting rank waits
for good; the readings say why.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from simulator.diagnosis.situation import Situation, Standing
from simulator.verdict import Code
from simulator.waits import StoreWait


@dataclass(frozen=True, slots=True)
class Reading:
    """One reason why ranks wait for good."""

    code: Code
    culprits: tuple[int, ...]
    """The missing or dead ranks, or those of the cycle."""
    victims: tuple[int, ...]
    """Every rank that waits in this part of the graph."""
    cycle: tuple[int, ...] = ()
    """The shortest cycle, from its lowest rank on."""


def build(situation: Situation) -> nx.DiGraph:
    """The wait-for graph. Rank nodes are ints; meeting nodes are ("meeting", index) with attribute `any_suffices`."""
    graph = nx.DiGraph()
    graph.add_nodes_from(rank.rank for rank in situation.ranks)
    index_of = {call: index for index, meeting in enumerate(situation.meetings) for call in meeting.calls}
    unfinished = [rank.rank for rank in situation.ranks if rank.standing is Standing.WAITING]
    for rank in situation.ranks:
        if isinstance(rank.wait, StoreWait):
            node = ("store", rank.rank)
            graph.add_node(node, any_suffices=True)
            graph.add_edge(rank.rank, node)
            graph.add_edges_from((node, other) for other in unfinished if other != rank.rank)
            continue
        for call in getattr(rank.wait, "calls", ()):
            if call in index_of:
                graph.add_edge(rank.rank, ("meeting", index_of[call]))
    for index, meeting in enumerate(situation.meetings):
        if ("meeting", index) in graph:
            graph.nodes["meeting", index]["any_suffices"] = meeting.any_suffices
            graph.add_edges_from((("meeting", index), rank) for rank in meeting.missing)
    return graph


def read(situation: Situation) -> tuple[Reading, ...]:
    """The readings, one for each part of the graph that hangs together, by lowest waiting rank."""
    graph = build(situation)
    waiting = {rank.rank for rank in situation.ranks if rank.standing is Standing.WAITING}
    readings = []
    for part in nx.weakly_connected_components(graph):
        victims = tuple(sorted(node for node in part if node in waiting))
        if victims:
            readings.append(_read_part(graph.subgraph(part), situation, victims))
    return tuple(sorted(readings, key=lambda reading: reading.victims))


def _read_part(graph: nx.DiGraph, situation: Situation, victims: tuple[int, ...]) -> Reading:
    standing = {rank.rank: rank.standing for rank in situation.ranks}
    ranks = sorted(node for node in graph if isinstance(node, int))
    dead = tuple(rank for rank in ranks if standing[rank] is Standing.RAISED)
    if dead:
        return Reading(Code.DEADLOCK_DEAD_RANK, dead, victims)
    cycle = _shortest_cycle(graph)
    if cycle:
        return Reading(Code.DEADLOCK_CYCLE, tuple(sorted(cycle)), victims, cycle)
    missing = tuple(rank for rank in ranks if standing[rank] is Standing.RETURNED)
    return Reading(Code.DEADLOCK_MISSING_RANK, missing or victims, victims)


def _shortest_cycle(graph: nx.DiGraph) -> tuple[int, ...]:
    """The ranks of a shortest cycle, from its lowest rank on; () if there is none."""
    best: tuple[int, ...] = ()
    for component in nx.strongly_connected_components(graph):
        ranks = sorted(node for node in component if isinstance(node, int))
        if len(component) > 1 and (not best or ranks[0] < best[0]):
            cycle = _cycle_through(graph.subgraph(component), ranks[0])
            best = tuple(node for node in cycle if isinstance(node, int))
    return best


def _cycle_through(graph: nx.DiGraph, start: int) -> list[object]:
    """A shortest way from `start` back to itself."""
    ways = [nx.shortest_path(graph, after, start) for after in sorted(graph.successors(start), key=repr)]
    return [start, *min(ways, key=len)[:-1]]
