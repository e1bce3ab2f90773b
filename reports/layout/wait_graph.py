"""Who waited for whom when the run ended: the wait-for graph, with ranks alike as one node.

Ranks are alike if they wait in the same slots, or for the same others, and the same ranks wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from reports.document import End, Run, Waiting, Who
from reports.layout.columns import call_of
from reports.wording import rank_list


@dataclass(frozen=True, slots=True)
class Node:
    """Ranks that are alike, or a thread."""

    members: tuple[Who, ...]
    end: End
    is_culprit: bool = False

    @property
    def label(self) -> str:
        """Who it is, in words."""
        thread = self.members[0].thread
        return rank_list([who.rank for who in self.members]) + (f", thread {thread}" if thread else "")


@dataclass(frozen=True, slots=True)
class Edge:
    """The one waits for the other; both are indices of nodes."""

    source: int
    target: int
    label: str
    """What it waits in."""
    in_cycle: bool
    any_suffices: bool = False
    """The source waits for one of its targets only."""


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Nodes in the order of their ranks."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def wait_graph_of(run: Run) -> WaitGraph | None:
    """The wait-for graph of a run; None if nobody waited for anybody, or if the run fails by calls that differ.

    Who is in a slot whose calls differ waits for nobody: all have come.
    """
    if is_mismatch(run):
        return None
    arcs = [(waiting, target) for waiting in run.waiting for target in _targets(run, waiting)]
    if not arcs:
        return None
    members = _alike(arcs)
    node_of = {who: index for index, alike in enumerate(members) for who in alike}
    culprits = {rank for finding in run.findings if finding.verdict == "fail" for rank in finding.ranks}
    cycle = next((finding.cycle for finding in run.findings if finding.cycle), ())
    circle = {(node_of.get(Who(one)), node_of.get(Who(other))) for one, other in pairwise((*cycle, *cycle[:1]))}
    edges: dict[tuple[int, int], Edge] = {}
    for waiting, target in arcs:
        ends = node_of[waiting.who], node_of[target]
        edges.setdefault(ends, Edge(*ends, _label(run, waiting), ends in circle, waiting.any_suffices))
    waiting_ones = {waiting.who for waiting in run.waiting}
    ended: dict[int, End] = {rank.rank: rank.end for rank in run.ranks}
    nodes = (
        Node(
            tuple(alike),
            "waiting" if alike[0] in waiting_ones else ended.get(alike[0].rank, "unknown"),
            any(who.rank in culprits and not who.thread for who in alike),
        )
        for alike in members
    )
    return WaitGraph(tuple(nodes), tuple(edges.values()))


def is_mismatch(run: Run) -> bool:
    """True if the finding that the run begins with is of calls that differ."""
    return run.leading is not None and run.leading.code.startswith("mismatch.")


def _targets(run: Run, waiting: Waiting) -> Iterable[Who]:
    """For whom somebody waits."""
    yield from waiting.waits_for
    for index in waiting.slots:
        yield from map(Who, run.slots[index].missing)


def _alike(arcs: Iterable[tuple[Waiting, Who]]) -> list[list[Who]]:
    """Everybody in the graph, those alike together."""
    waits: dict[Who, tuple[object, ...]] = {}
    awaited: dict[Who, list[tuple[object, ...]]] = {}
    for waiting, target in arcs:
        what = (waiting.slots, waiting.waits_for, waiting.what, waiting.who if waiting.who.thread else None)
        waits[waiting.who] = what
        awaited.setdefault(target, [])
        if what not in awaited[target]:
            awaited[target].append(what)
    found: dict[tuple[object, ...], list[Who]] = {}
    for who in sorted({*waits, *awaited}):
        key = waits.get(who), tuple(awaited.get(who, ())), who if who.thread else None
        found.setdefault(key, []).append(who)
    return list(found.values())


def _label(run: Run, waiting: Waiting) -> str:
    """What it waits in; which group only if there are several."""
    slot = run.slots[waiting.slots[0]] if waiting.slots else None
    if slot is None or not slot.issues:
        return waiting.what
    call = call_of(run, slot.issues[0])
    several = len({run.slots[index].group for each in run.waiting for index in each.slots}) > 1
    more = f" or {len(waiting.slots) - 1} more" if len(waiting.slots) > 1 else ""
    group = f' "{slot.group}"' if several else ""
    return f"{call.operation} #{call.sequence}{group}{more}"
