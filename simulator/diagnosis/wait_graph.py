"""The wait-for graph of a deadlock, and the reasons why ranks wait, each as a `WaitReason`.

Nodes are ranks and slots: a slot is a collective, or one side of a message, in which ranks wait. An edge goes from a
rank to its slot, and from a slot to each rank that has not made its call. The slots keep the graph small: if half of
1,024 ranks wait for the other half, there are 1,024 edges, not 262,144.

An AND node needs all its successors. An OR node (a receive from any source, a wait for one of several calls, a store
key) needs one. The graph is built only when no rank can run and no timer is pending, so every waiting rank waits
forever, and so do all alternatives of an OR node.

Note [Store keys]. It is not known which rank should set a key. Ranks that wait for different keys may each have to set
another's key, so they are read as a cycle. Ranks that wait for the same key, or a single rank, wait for no known rank.
A thread that a rank started, and for which no main thread waits, is no reason: a daemon never is, as it may wait to be
told to stop; another thread is one only where a main thread lacks a key, which it may have to set.

Note [Stream nodes]. On a backend that runs a rank's calls one after another, a queued call has not reached its slot.
Ranks that wait for it wait for the rank's stream, which is a node. The stream waits for the slots of its running calls.
The rank's main thread may be anywhere by then.

Note [Thread nodes]. A rank's main thread and each thread that it started is a node. Its edge leads to the thread whose
end it waits for, or through a lock to the lock's holder. At an event or a queue it waits for ANY other thread of the
rank. Any thread of a rank could make a missing call; the main thread represents them all, as it waits for their end.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenCalls, RankState, Snapshot, WaitReason
from ddpsim.simulator.diagnosis.digraph import Digraph
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.waits import CallWait, ClockWait, LockWait, StoreWait, ThreadWait, Wait, Waiting
from ddpsim.simulator.wording import values_by_key

Graph: TypeAlias = Digraph[Any]


class ThreadNode(NamedTuple):
    """The graph's node for a thread; a rank's main thread has the rank's number."""

    rank: int
    number: int


class StreamNode(NamedTuple):
    """The graph's node for a rank's stream (a backend's queue of calls)."""

    rank: int
    name: str = "stream"


class WaitGraph:
    """The wait-for graph of a snapshot: threads, streams, ("slot", index), ("store", index) and ("lock", ...)."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.graph: Graph = Digraph()
        self.alternatives: set[Any] = set()
        """The OR nodes."""
        self.idle: set[ThreadNode] = set()
        """Started threads whose waits for store keys are no reason for anything."""
        self.waits: dict[ThreadNode, Wait | None] = {}
        """For each thread, its wait; without started threads that only wait for a timer."""
        for rank in snapshot.ranks:
            self.waits[ThreadNode(rank.rank, rank.rank)] = rank.wait
        for rank in snapshot.ranks:
            for thread in rank.threads:
                if not isinstance(thread.wait, (ClockWait, NoneType)):
                    self.waits[ThreadNode(rank.rank, thread.number)] = thread.wait
        self._add_all_nodes()

    def _add_all_nodes(self) -> None:
        """Add a node for each wait, with edges to all nodes that the wait is for."""
        graph, open_calls_by_call, queued = self.graph, self.snapshot.open_calls_by_call, self.snapshot.stream_by_queued
        for node in self.waits:
            graph.add_node(node)
        for node, wait in self.waits.items():
            if isinstance(wait, CallWait):
                if len(wait.calls) > 1:
                    self.alternatives.add(node)
                graph.add_edges(
                    (node, ("slot", open_calls_by_call[call])) for call in wait.calls if call in open_calls_by_call
                )
                graph.add_edges((node, StreamNode(call.rank)) for call in wait.calls if call in queued)
            elif isinstance(wait, (ThreadWait, LockWait)):
                self._add_thread_wait(node, wait)
        for stream in self.snapshot.streams:
            # A call that does not agree is in no slot.
            slots = [open_calls_by_call[call] for call in stream.started if call in open_calls_by_call]
            graph.add_edges((StreamNode(stream.rank), ("slot", slot)) for slot in slots)
        for index, slot in enumerate(self.snapshot.open_slots):
            if ("slot", index) in graph.after:
                if slot.any_suffices:
                    self.alternatives.add(("slot", index))
                graph.add_edges((("slot", index), self._node_of_missing_call(slot, rank)) for rank in slot.missing)
        self._add_store_waits()

    def _node_of_missing_call(self, slot: OpenCalls, rank: int) -> ThreadNode | StreamNode:
        """Return the node that must make a rank's missing call: its stream if the call is queued, else its thread."""
        queued = (call for stream in self.snapshot.streams if stream.rank == rank for call in stream.queued)
        return StreamNode(rank) if any(map(slot.is_waiting_for, queued)) else ThreadNode(rank, rank)

    def _add_thread_wait(self, node: ThreadNode, wait: ThreadWait | LockWait) -> None:
        nodes = {each.number: each for each in self.waits}
        if isinstance(wait, ThreadWait):
            if wait.thread in nodes:
                self.graph.add_edges([(node, nodes[wait.thread])])
        elif wait.holder is None:
            self.alternatives.add(node)
            self.graph.add_edges((node, each) for each in self.waits if each.rank == node.rank and each != node)
        elif wait.holder in nodes:
            self.graph.add_edges([(node, wait.lock), (wait.lock, nodes[wait.holder])])

    def _add_store_waits(self) -> None:
        """Add the waits for store keys; see Note [Store keys]. A ring of the different waits keeps the graph small."""
        of_keys = {node: wait.keys for node, wait in self.waits.items() if isinstance(wait, StoreWait)}
        parties = self.graph.descendants_of(node for node in self.waits if not _is_within_rank(node))
        is_key_missing = not of_keys.keys().isdisjoint(parties)
        threads = [node for node in of_keys if node not in parties]
        self.idle = {node for node in threads if self.snapshot.threads[node.number].is_daemon or not is_key_missing}
        waits = ((keys, node) for node, keys in of_keys.items() if node not in self.idle)
        alike = list(values_by_key(waits).values())
        for index, nodes in enumerate(alike):
            self.graph.add_node(("store", index))
            self.alternatives.add(("store", index))
            self.graph.add_edges((node, ("store", index)) for node in nodes)
            if len(alike) > 1:
                self.graph.add_edges([(("store", index), alike[(index + 1) % len(alike)][0])])

    def list_waiting(self) -> tuple[Waiting, ...]:
        """Return, by rank, each waiting thread and the threads that it waits for; slots and keys are left out."""
        threads = self.snapshot.threads
        who: dict[Any, RankOrThread] = {node: RankOrThread(node.rank, threads[node.number].name) for node in self.waits}
        who |= {node: RankOrThread(node.rank, "") for node in self.graph.after if isinstance(node, StreamNode)}
        beyond: dict[Any, tuple[RankOrThread, ...]] = {}  # calls that wait in one slot share the tuple

        def awaited_ranks_of(node: Any) -> tuple[RankOrThread, ...]:
            if node not in beyond:
                beyond[node] = tuple(who[each] for each in ((node,) if node in who else self.graph.after[node]))
            return beyond[node]

        found = []
        for node, wait in self.waits.items():
            if wait is not None:
                after = list(self.graph.after[node])
                targets = (
                    awaited_ranks_of(after[0])
                    if len(after) == 1
                    else tuple(chain.from_iterable(map(awaited_ranks_of, after)))
                )
                is_or = not self.alternatives.isdisjoint((node, *after))
                found.append(Waiting(who[node], wait, targets, is_or, self._missing_ranks(wait)))
        return tuple(sorted(found, key=lambda each: each.who))

    def _missing_ranks(self, wait: Wait) -> tuple[tuple[int, ...], ...]:
        """Return, for each call of a wait, the ranks whose matching call is missing; () if none is missing any more."""
        slots = (
            [self.snapshot.open_calls_by_call.get(call) for call in wait.calls] if isinstance(wait, CallWait) else []
        )
        return tuple(() if slot is None else self.snapshot.open_slots[slot].missing for slot in slots)

    def find_wait_reasons(self) -> tuple[WaitReason, ...]:
        """Return a reason for each cycle and each set of ends of waits (`_ends_of_waits`), by lowest victim."""
        readings = [*self._cycles(), *self._ends_of_waits()]
        return tuple(sorted(readings, key=lambda reading: (reading.victims, reading.code, reading.culprits)))

    def _cycles(self) -> Iterator[WaitReason]:
        """Yield the shortest cycle of each strongly connected component that waits for itself.

        An OR node with a successor outside the component is omitted: the cycle is not the reason for its wait.
        """
        after = self.graph.after
        for knot in self.graph.strong_components():
            closed = [node for node in knot if node not in self.alternatives or after[node].keys() <= knot.keys()]
            cycle = _shortest_cycle(self.graph.subgraph(closed))
            if cycle:
                victims = _ranks_of_nodes(self.graph.ancestors_of(knot))
                ranks = tuple(dict.fromkeys(node.rank for node in cycle))
                if len(ranks) > 1 or not any(map(_is_within_rank, knot)):
                    streams = tuple(node.rank for node in cycle if isinstance(node, StreamNode))
                    yield WaitReason(Code.DEADLOCK_CYCLE, tuple(sorted(ranks)), victims, ranks, streams=streams)
                else:
                    numbers = tuple(node.number for node in cycle if isinstance(node, ThreadNode))
                    yield WaitReason(Code.DEADLOCK_THREADS, ranks, victims, threads=numbers)

    def _ends_of_waits(self) -> Iterator[WaitReason]:
        """Yield a reason for each end of a chain of waits: ranks that raised or returned, store keys never set."""
        graph = self.graph
        # Ends with the same nodes before them have the same ancestors, so those are looked for once.
        ends: dict[tuple[RankState, frozenset[Any]], list[Any]] = {}
        for node in (node for node, after in graph.after.items() if not after and node not in self.idle):
            is_over = isinstance(node, ThreadNode) and self.waits[node] is None
            state = self.snapshot.ranks[node.rank].state if is_over else RankState.WAITING
            if graph.before[node] or state is RankState.WAITING:
                alone = (node,) if state is RankState.WAITING else ()
                ends.setdefault((state, frozenset([*alone, *graph.before[node]])), []).append(node)
        merged: dict[tuple[RankState, tuple[int, ...]], list[Any]] = {}
        for (state, _), nodes in ends.items():
            starts = nodes[:1] if state is RankState.WAITING else graph.before[nodes[0]]
            merged.setdefault((state, _ranks_of_nodes(graph.ancestors_of(starts))), []).extend(nodes)
        for (state, victims), nodes in merged.items():
            before = {node for end in nodes for node in graph.before[end]}
            culprits = _ranks_of_nodes(nodes)
            code = Code.DEADLOCK_DEAD_RANK if state is RankState.RAISED else Code.DEADLOCK_MISSING_RANK
            if any(isinstance(self.waits.get(node), (LockWait, ThreadWait)) for node in nodes):
                code = Code.DEADLOCK_THREADS
            elif state is RankState.WAITING:
                culprits = _ranks_of_nodes({*nodes, *before})
            any_suffices = len(nodes) > 1 and before <= self.alternatives
            yield WaitReason(code, culprits, victims, any_suffices=any_suffices)


def _is_within_rank(node: Any) -> bool:
    """Return True for a started thread or a lock, which only exist within one rank."""
    return node.number != node.rank if isinstance(node, ThreadNode) else node[0] == "lock"


def _ranks_of_nodes(nodes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(sorted({node.rank for node in nodes if isinstance(node, (ThreadNode, StreamNode))}))


def _shortest_cycle(graph: Graph) -> tuple[ThreadNode | StreamNode, ...]:
    """Return the threads and streams of a shortest cycle, starting at the lowest rank; () if there is none."""
    starts = [
        (min((node for node in knot if isinstance(node, (ThreadNode, StreamNode))), key=_node_order), knot)
        for knot in graph.strong_components()
    ]
    if not starts:
        return ()
    start, knot = min(starts, key=lambda each: each[0].rank)
    within = graph.subgraph(knot)
    paths = [within.shortest_path(after, start) for after in sorted(within.after[start], key=repr)]
    cycle = [start, *min(paths, key=len)[:-1]]
    return tuple(node for node in cycle if isinstance(node, (ThreadNode, StreamNode)))


def _node_order(node: ThreadNode | StreamNode) -> tuple[int, bool, int]:
    """Sort key of a node: by rank, the rank's main thread first."""
    return node.rank, isinstance(node, StreamNode), node.number if isinstance(node, ThreadNode) else 0
