"""The wait-for graph: who waits for whom, and its readings.

Nodes are ranks and the slots they wait in; an edge goes from a rank to its slot and from a slot to each rank
that has not come. The slots in between keep the graph small: half of 1,024 ranks waiting for the other half are
1,024 edges, not 262,144.

An AND node needs all its successors, an OR node (a receive from any source, a wait for one of several calls, a store
key) needs one. The graph is only built when no rank is enabled and the clock has nothing to fire, so every waiting rank
waits for good, and all alternatives of an OR node do; the readings say why.

Note [Store keys]. Nobody knows who was to set a key. Ranks that wait for different keys may each have been about to set
another's, which is read as a cycle; ranks that wait for one key, or one rank alone, wait for nobody in particular.

Note [Thread nodes]. A rank's node stands for its program, and each thread that it has started is a node of its own: an
edge goes to the thread whose end it waits for, and by way of a lock to who has it. At an event or a queue it waits for
ANY of the rank's other threads. A rank that is missing in a slot may be missed in any of its threads; its program is
as good as them, as it waits for them in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias

import networkx as nx

from ddpsim.simulator.choices import Who
from ddpsim.simulator.diagnosis.snapshot import RankState, Snapshot
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.waits import CallWait, ClockWait, LockWait, StoreWait, ThreadWait, Wait, Waiting

Graph: TypeAlias = "nx.DiGraph[Any]"


_OF_THREADS = ("thread", "lock")


@dataclass(frozen=True, slots=True)
class Reading:
    """One reason why ranks wait for good."""

    code: Code
    culprits: tuple[int, ...]
    """The missing or dead ranks, or those of the cycle, or those that wait for a store key."""
    victims: tuple[int, ...]
    """Every rank that waits for this, if only by way of others; a rank may wait for several things."""
    cycle: tuple[int, ...] = ()
    """The shortest cycle, from its lowest rank on."""
    any_suffices: bool = False
    """True if one of several culprits would be enough."""
    threads: tuple[int, ...] = ()
    """The numbers of the threads of a cycle within one rank."""


def build(snapshot: Snapshot) -> Graph:
    """The wait-for graph. Rank nodes are ints; slot nodes are ("slot", index) with attribute `any_suffices`.

    Other nodes are ("store", index), ("thread", rank, number) and ("lock", ...).
    """
    graph: Graph = nx.DiGraph()
    waits = _waits(snapshot)
    graph.add_nodes_from(waits)
    for node, wait in waits.items():
        if isinstance(wait, CallWait):
            graph.nodes[node]["any_suffices"] = len(wait.calls) > 1
            for call in wait.calls:
                if call in snapshot.slot_by_call:
                    graph.add_edge(node, ("slot", snapshot.slot_by_call[call]))
        elif isinstance(wait, (ThreadWait, LockWait)):
            _add_thread_wait(graph, node, wait)
    for index, slot in enumerate(snapshot.open_slots):
        if ("slot", index) in graph:
            graph.nodes["slot", index]["any_suffices"] = slot.any_suffices
            graph.add_edges_from((("slot", index), rank) for rank in slot.missing)
    _add_store_waits(graph, snapshot)
    return graph


def _waits(snapshot: Snapshot) -> dict[Any, Wait | None]:
    """What each rank and thread waits for, by its node; see Note [Thread nodes]."""
    waits: dict[Any, Wait | None] = {rank.rank: rank.wait for rank in snapshot.ranks}
    for rank in snapshot.ranks:
        threads = [thread for thread in rank.threads if not isinstance(thread.wait, (ClockWait, NoneType))]
        waits |= {("thread", rank.rank, thread.number): thread.wait for thread in threads}  # others only beat
    return waits


def _add_thread_wait(graph: Graph, node: Any, wait: ThreadWait | LockWait) -> None:
    nodes = {_number(each): each for each in graph if _is_thread(each)}
    if isinstance(wait, ThreadWait):
        if wait.thread in nodes:
            graph.add_edge(node, nodes[wait.thread])
    elif wait.holder is None:
        graph.nodes[node]["any_suffices"] = True
        graph.add_edges_from((node, each) for each in nodes.values() if _rank(each) == _rank(node) and each != node)
    elif wait.holder in nodes:
        graph.add_edge(node, wait.lock)
        graph.add_edge(wait.lock, nodes[wait.holder])


def _is_thread(node: Any) -> bool:
    """True for the program of a rank, too."""
    return isinstance(node, int) or node[0] == "thread"


def _rank(node: Any) -> int:
    return node if isinstance(node, int) else int(node[1])


def _number(node: Any) -> int:
    return node if isinstance(node, int) else int(node[2])


def _add_store_waits(graph: Graph, snapshot: Snapshot) -> None:
    """See Note [Store keys]. A ring of the different waits keeps the graph small."""
    by_keys: dict[tuple[str, ...], list[Any]] = {}
    for node, wait in _waits(snapshot).items():
        if isinstance(wait, StoreWait):
            by_keys.setdefault(wait.keys, []).append(node)
    alike = list(by_keys.values())
    for index, nodes in enumerate(alike):
        graph.add_node(("store", index), any_suffices=True)
        graph.add_edges_from((node, ("store", index)) for node in nodes)
        if len(alike) > 1:
            graph.add_edge(("store", index), alike[(index + 1) % len(alike)][0])


def waiting(snapshot: Snapshot) -> tuple[Waiting, ...]:
    """Who waits, and for whom, in the order of ranks: the graph as values, with the slots in between left out."""
    graph = build(snapshot)
    names = {thread.number: thread.name for rank in snapshot.ranks for thread in rank.threads}
    beyond: dict[Any, tuple[Who, ...]] = {}  # all that wait in one slot share the tuple of those it misses

    def through(node: Any) -> tuple[Who, ...]:
        if node not in beyond:
            nodes = (node,) if _is_thread(node) else graph.successors(node)
            beyond[node] = tuple(Who(_rank(each), names.get(_number(each), "")) for each in nodes)
        return beyond[node]

    found = []
    for node, wait in _waits(snapshot).items():
        if wait is not None:
            after = list(graph.successors(node))
            targets = through(after[0]) if len(after) == 1 else tuple(who for each in after for who in through(each))
            is_or = any(graph.nodes[each].get("any_suffices", False) for each in (node, *after))
            found.append(Waiting(Who(_rank(node), names.get(_number(node), "")), wait, targets, is_or))
    return tuple(sorted(found, key=lambda each: each.who))


def read(snapshot: Snapshot) -> tuple[Reading, ...]:
    """The readings: one for each cycle, and for each set of ends that the same ranks wait for; by lowest victim."""
    graph = build(snapshot)
    readings = [*_cycles(graph), *_ends(graph, snapshot)]
    return tuple(sorted(readings, key=lambda reading: (reading.victims, reading.code, reading.culprits)))


def _cycles(graph: Graph) -> Iterator[Reading]:
    """The shortest cycle of each strongly connected component that waits for itself, whatever else it waits for."""
    for component in nx.strongly_connected_components(graph):
        if len(component) > 1:
            cycle = _shortest_cycle(graph.subgraph(component - _with_a_way_out(graph, component)))
            if cycle:
                victims = _ranks(component | nx.ancestors(graph, cycle[0]))
                ranks = tuple(dict.fromkeys(map(_rank, cycle)))
                if len(ranks) > 1 or not any(isinstance(node, tuple) and node[0] in _OF_THREADS for node in component):
                    yield Reading(Code.DEADLOCK_CYCLE, tuple(sorted(ranks)), victims, ranks)
                else:
                    yield Reading(Code.DEADLOCK_THREADS, ranks, victims, threads=tuple(map(_number, cycle)))


def _with_a_way_out(graph: Graph, component: set[Any]) -> set[Any]:
    """The OR nodes that somebody outside could serve: a cycle through one of them is not why it waits."""
    return {
        node
        for node in component
        if graph.nodes[node].get("any_suffices") and any(after not in component for after in graph.successors(node))
    }


def _ends(graph: Graph, snapshot: Snapshot) -> Iterator[Reading]:
    """What waits end in: ranks that raised or returned, and store keys that nobody sets."""
    ends: dict[tuple[RankState, frozenset[Any]], list[Any]] = {}
    waits = _waits(snapshot)
    for node in graph:
        if graph.out_degree(node) == 0:
            is_over = isinstance(node, int) and waits[node] is None
            state = snapshot.ranks[node].state if is_over else RankState.WAITING
            if graph.in_degree(node) or state is RankState.WAITING:
                alone = (node,) if state is RankState.WAITING else ()
                ends.setdefault((state, frozenset([*alone, *graph.predecessors(node)])), []).append(node)
    merged: dict[tuple[RankState, tuple[int, ...]], list[Any]] = {}
    for (state, _), nodes in ends.items():
        waiting = nx.ancestors(graph, nodes[0]) | ({nodes[0]} if state is RankState.WAITING else set())
        merged.setdefault((state, _ranks(waiting)), []).extend(nodes)
    for (state, victims), nodes in merged.items():
        if state is RankState.WAITING:
            culprits = _ranks({*nodes, *(rank for node in nodes for rank in graph.predecessors(node))})
        else:
            culprits = _ranks(nodes)
        before = {node for end in nodes for node in graph.predecessors(end)}
        any_suffices = len(nodes) > 1 and all(graph.nodes[node].get("any_suffices") for node in before)
        code = Code.DEADLOCK_DEAD_RANK if state is RankState.RAISED else Code.DEADLOCK_MISSING_RANK
        if any(isinstance(waits.get(node), (LockWait, ThreadWait)) for node in nodes):
            code, culprits = Code.DEADLOCK_THREADS, _ranks(nodes)
        yield Reading(code, culprits, victims, any_suffices=any_suffices)


def _ranks(nodes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(sorted({_rank(node) for node in nodes if _is_thread(node)}))


def _shortest_cycle(graph: Graph) -> tuple[Any, ...]:
    """The ranks and threads of a shortest cycle, from its lowest rank on; () if there is none."""
    best: tuple[Any, ...] = ()
    for component in nx.strongly_connected_components(graph):
        if len(component) > 1:
            lowest = min(filter(_is_thread, component), key=_place)
            if not best or _place(lowest) < _place(best[0]):
                best = tuple(filter(_is_thread, _cycle_through(graph.subgraph(component), lowest)))
    return best


def _place(node: Any) -> tuple[int, int]:
    return _rank(node), _number(node)


def _cycle_through(graph: Graph, start: int) -> list[Any]:
    """A shortest way from `start` back to itself."""
    ways = [nx.shortest_path(graph, after, start) for after in sorted(graph.successors(start), key=repr)]
    return [start, *min(ways, key=len)[:-1]]
