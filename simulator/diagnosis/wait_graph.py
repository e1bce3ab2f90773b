"""The wait-for graph: who waits for whom, and its readings.

Nodes are ranks and the slots they wait in; an edge goes from a rank to its slot and from a slot to each rank
that has not come. The slots in between keep the graph small: half of 1,024 ranks waiting for the other half are
1,024 edges, not 262,144.

An AND node needs all its successors, an OR node (a receive from any source, a wait for one of several calls, a store
key) needs one. The graph is only built when no rank is enabled and the clock has nothing to fire, so every waiting rank
waits for good, and all alternatives of an OR node do; the readings say why.

Note [Store keys]. Nobody knows who was to set a key. Ranks that wait for different keys may each have been about to set
another's, which is read as a cycle; ranks that wait for one key, or one rank alone, wait for nobody in particular.

Note [Stream nodes]. On a backend that runs a rank's calls one after another, a call that is queued behind another one
has not come to its slot. Who waits for it waits for the rank's stream, a node of its own, and that for the slots of the
calls under way in it: the program of the rank may be anywhere by then.

Note [Thread nodes]. The program of a rank is one of its threads, and each that it has started is a node of its own: an
edge goes to the thread whose end it waits for, and by way of a lock to who has it. At an event or a queue it waits for
ANY of the rank's other threads. A rank that is missing in a slot may be missed in any of its threads; its program is
as good as them, as it waits for them in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

from ddpsim.simulator.choices import Who
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenSlot, RankState, Snapshot
from ddpsim.simulator.diagnosis.digraph import Digraph
from ddpsim.simulator.diagnosis.wait_reading import WaitReading
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.waits import CallWait, ClockWait, LockWait, StoreWait, ThreadWait, Wait, Waiting

Graph: TypeAlias = Digraph[Any]


class Thread(NamedTuple):
    """The node of a thread; that of a rank's program has the rank's number."""

    rank: int
    number: int


class Stream(NamedTuple):
    """The node of the stream of a rank."""

    rank: int
    name: str = "stream"


class WaitGraph:
    """The wait-for graph of a snapshot: threads, streams, ("slot", index), ("store", index) and ("lock", ...).

    `alternatives` are its OR nodes.
    """

    __slots__ = ("alternatives", "graph", "snapshot", "waits")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.graph: Graph = Digraph()
        self.alternatives: set[Any] = set()
        self.waits: dict[Thread, Wait | None] = {}
        """What each thread waits for; without those that a rank has started and that a timer wakes up again."""
        for rank in snapshot.ranks:
            self.waits[Thread(rank.rank, rank.rank)] = rank.wait
        for rank in snapshot.ranks:
            for thread in rank.threads:
                if not isinstance(thread.wait, (ClockWait, NoneType)):
                    self.waits[Thread(rank.rank, thread.number)] = thread.wait
        self._build()

    # --- building -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        graph, slot_by_call, queued = self.graph, self.snapshot.slot_by_call, self.snapshot.stream_by_queued
        for node in self.waits:
            graph.add_node(node)
        for node, wait in self.waits.items():
            if isinstance(wait, CallWait):
                if len(wait.calls) > 1:
                    self.alternatives.add(node)
                graph.add_edges((node, ("slot", slot_by_call[call])) for call in wait.calls if call in slot_by_call)
                graph.add_edges((node, Stream(call.rank)) for call in wait.calls if call in queued)
            elif isinstance(wait, (ThreadWait, LockWait)):
                self._add_thread_wait(node, wait)
        for stream in self.snapshot.streams:
            open_calls = [call for call in stream.started if call in slot_by_call]  # one that does not agree is in none
            graph.add_edges((Stream(stream.rank), ("slot", slot_by_call[call])) for call in open_calls)
        for index, slot in enumerate(self.snapshot.open_slots):
            if ("slot", index) in graph.after:
                if slot.any_suffices:
                    self.alternatives.add(("slot", index))
                graph.add_edges((("slot", index), self._missing_in(slot, rank)) for rank in slot.missing)
        self._add_store_waits()

    def _missing_in(self, slot: OpenSlot, rank: int) -> Thread | Stream:
        """Who is to bring a slot the call of a rank: its stream, if the call is queued there, or its program."""
        is_queued = any(
            slot.lacks(call) for stream in self.snapshot.streams if stream.rank == rank for call in stream.queued
        )
        return Stream(rank) if is_queued else Thread(rank, rank)

    def _add_thread_wait(self, node: Thread, wait: ThreadWait | LockWait) -> None:
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
        """See Note [Store keys]. A ring of the different waits keeps the graph small."""
        by_keys: dict[tuple[str, ...], list[Thread]] = {}
        for node, wait in self.waits.items():
            if isinstance(wait, StoreWait):
                by_keys.setdefault(wait.keys, []).append(node)
        alike = list(by_keys.values())
        for index, nodes in enumerate(alike):
            self.graph.add_node(("store", index))
            self.alternatives.add(("store", index))
            self.graph.add_edges((node, ("store", index)) for node in nodes)
            if len(alike) > 1:
                self.graph.add_edges([(("store", index), alike[(index + 1) % len(alike)][0])])

    # --- who waits for whom -------------------------------------------------------------------------------------------

    def waiting(self) -> tuple[Waiting, ...]:
        """Who waits, and for whom, in the order of ranks: the graph as values, with what lies in between left out."""
        who: dict[Any, Who] = {node: Who(node.rank, self.snapshot.threads[node.number].name) for node in self.waits}
        who |= {node: Who(node.rank, "") for node in self.graph.after if isinstance(node, Stream)}
        beyond: dict[Any, tuple[Who, ...]] = {}  # all that wait in one slot share the tuple of those it misses

        def through(node: Any) -> tuple[Who, ...]:
            if node not in beyond:
                beyond[node] = tuple(who[each] for each in ((node,) if node in who else self.graph.after[node]))
            return beyond[node]

        found = []
        for node, wait in self.waits.items():
            if wait is not None:
                after = list(self.graph.after[node])
                targets = (
                    through(after[0]) if len(after) == 1 else tuple(one for each in after for one in through(each))
                )
                is_or = not self.alternatives.isdisjoint((node, *after))
                found.append(Waiting(who[node], wait, targets, is_or, self._missing(wait)))
        return tuple(sorted(found, key=lambda each: each.who))

    def _missing(self, wait: Wait) -> tuple[tuple[int, ...], ...]:
        """For each call of a wait, whom its slot lacks; nobody, if it is open no more."""
        slots = [self.snapshot.slot_by_call.get(call) for call in wait.calls] if isinstance(wait, CallWait) else []
        return tuple(() if slot is None else self.snapshot.open_slots[slot].missing for slot in slots)

    # --- why ----------------------------------------------------------------------------------------------------------

    def readings(self) -> tuple[WaitReading, ...]:
        """One for each cycle, and for each set of ends that the same ranks wait for; by lowest victim."""
        readings = [*self._cycles(), *self._ends()]
        return tuple(sorted(readings, key=lambda reading: (reading.victims, reading.code, reading.culprits)))

    def _cycles(self) -> Iterator[WaitReading]:
        """The shortest cycle of each strongly connected component that waits for itself, whatever else it waits for.

        An OR node that somebody outside could serve is left out: a cycle through it is not why it waits.
        """
        for knot in self.graph.knots():
            closed = [
                node for node in knot if node not in self.alternatives or self.graph.after[node].keys() <= knot.keys()
            ]
            cycle = _shortest_cycle(self.graph.within(closed))
            if cycle:
                victims = _ranks(self.graph.ahead_of(knot))
                ranks = tuple(dict.fromkeys(node.rank for node in cycle))
                if len(ranks) > 1 or not any(map(_is_within_rank, knot)):
                    streams = tuple(node.rank for node in cycle if isinstance(node, Stream))
                    yield WaitReading(Code.DEADLOCK_CYCLE, tuple(sorted(ranks)), victims, ranks, streams=streams)
                else:
                    numbers = tuple(node.number for node in cycle if isinstance(node, Thread))
                    yield WaitReading(Code.DEADLOCK_THREADS, ranks, victims, threads=numbers)

    def _ends(self) -> Iterator[WaitReading]:
        """What waits end in: ranks that raised or returned, and store keys that nobody sets."""
        graph = self.graph
        # Ends with the same nodes before them have the same ancestors, so those are looked for once.
        ends: dict[tuple[RankState, frozenset[Any]], list[Any]] = {}
        for node in (node for node, after in graph.after.items() if not after):
            state = self._state(node)
            if graph.before[node] or state is RankState.WAITING:
                alone = (node,) if state is RankState.WAITING else ()
                ends.setdefault((state, frozenset([*alone, *graph.before[node]])), []).append(node)
        merged: dict[tuple[RankState, tuple[int, ...]], list[Any]] = {}
        for (state, _), nodes in ends.items():
            starts = nodes[:1] if state is RankState.WAITING else graph.before[nodes[0]]
            merged.setdefault((state, _ranks(graph.ahead_of(starts))), []).extend(nodes)
        for (state, victims), nodes in merged.items():
            before = {node for end in nodes for node in graph.before[end]}
            culprits = _ranks(nodes)
            code = Code.DEADLOCK_DEAD_RANK if state is RankState.RAISED else Code.DEADLOCK_MISSING_RANK
            if any(isinstance(self.waits.get(node), (LockWait, ThreadWait)) for node in nodes):
                code = Code.DEADLOCK_THREADS
            elif state is RankState.WAITING:
                culprits = _ranks({*nodes, *before})
            any_suffices = len(nodes) > 1 and before <= self.alternatives
            yield WaitReading(code, culprits, victims, any_suffices=any_suffices)

    def _state(self, node: Any) -> RankState:
        """What has become of whom a node stands for; one that waits for nobody in particular still waits."""
        is_over = isinstance(node, Thread) and self.waits[node] is None
        return self.snapshot.ranks[node.rank].state if is_over else RankState.WAITING


def _is_within_rank(node: Any) -> bool:
    """True for what only threads that a rank has started wait for, or are."""
    return node.number != node.rank if isinstance(node, Thread) else node[0] == "lock"


def _ranks(nodes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(sorted({node.rank for node in nodes if isinstance(node, (Thread, Stream))}))


def _shortest_cycle(graph: Graph) -> tuple[Thread | Stream, ...]:
    """The threads and streams of a shortest cycle, from the lowest one on; () if there is none."""
    starts = [
        (min((node for node in knot if isinstance(node, (Thread, Stream))), key=_order), knot) for knot in graph.knots()
    ]
    if not starts:
        return ()
    start, knot = min(starts, key=lambda each: each[0].rank)
    cycle = _cycle_through(graph.within(knot), start)
    return tuple(node for node in cycle if isinstance(node, (Thread, Stream)))


def _order(node: Thread | Stream) -> tuple[int, bool, int]:
    """By rank, the thread of its program first."""
    return node.rank, isinstance(node, Stream), node.number if isinstance(node, Thread) else 0


def _cycle_through(graph: Graph, start: Thread | Stream) -> list[Any]:
    """A shortest path from `start` back to itself."""
    paths = [graph.shortest_path(after, start) for after in sorted(graph.after[start], key=repr)]
    return [start, *min(paths, key=len)[:-1]]
