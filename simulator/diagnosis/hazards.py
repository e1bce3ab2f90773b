"""Hazards: facts that are noticed in ranks, and their findings.

A hazard passed here, and may hang or give wrong numbers under other backend semantics. The rank that notices one hands
a `Noticed` to the kernel, as a request without an answer. A rank that is a thread hands it over directly, a rank that
is a process sends it; all the rest is the same for both. The functions of `HAZARDS` make the findings at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.digraph import Digraph
from ddpsim.simulator.diagnosis.explain import Row, minority, sites_of, table
from ddpsim.simulator.diagnosis.hooks import are_of_hooks
from ddpsim.simulator.diagnosis.ignored_tags import messages_exchanged
from ddpsim.simulator.diagnosis.tensor_names import NamedCall, exchanged
from ddpsim.simulator.operations import CREATING
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, rank_list, ranks_by

Slot = tuple[str, int]
"""Group and sequence."""


class NoticedKind(Enum):
    """What may be noticed in a rank."""

    REPLICA = "tensors of a replica, or how far its wrapper is"
    """No hazard by itself: the judge of check="replicas" compares it with the other ranks'."""
    UNWAITED = "a rank returned and had not waited for a call"
    CHANGED = "the owner of a call changed its tensors before the wait"
    SHARED = "a call shares memory with another one in flight, and one of them writes it"
    READ = "the owner of a call read its tensors before the wait, or tensors that the call leaves undefined"
    NAMED = "the name of a call's tensor in the rank's program"
    LINES_MEET = "calls from different lines met"


class Noticed(NamedTuple):
    """A fact that was noticed in a rank. It changes nothing for any rank."""

    kind: NoticedKind
    calls: tuple[Call, ...] = ()
    detail: Any = None
    """READ: what showed it, such as `what the program returned`. NAMED: the `TensorName`. REPLICA: a `ReplicaFact`."""


class WatchedRun(NamedTuple):
    """What the hazards of an execution are found in."""

    noticed: Sequence[Noticed]
    issued: Sequence[tuple[Call, int]]
    """Each call in order of issue, and the number of the thread that made it."""
    have_returned: bool
    """The programs of all ranks returned. If not, there are worse findings."""

    def calls(self, kind: NoticedKind) -> list[Call]:
        """The first call of each fact of a kind."""
        return [each.calls[0] for each in self.noticed if each.kind is kind]


def hazards(run: WatchedRun) -> tuple[Finding, ...]:
    """All hazards of an execution."""
    return tuple(finding for find in HAZARDS for finding in find(run))


def _groups_in_other_order(run: WatchedRun) -> Iterable[Finding]:
    if run.have_returned:
        finding = group_order([call for call, _ in run.issued], [thread for _, thread in run.issued])
        return () if finding is None else (finding,)
    return ()


def group_order(issued: Sequence[Call], threads: Sequence[int] = ()) -> Finding | None:
    """Two groups whose calls some ranks issue in one order and some in another.

    `issued` is every call of a run, in order of issue. Where each rank's calls, one after another, are edges between
    slots, such an order is a cycle; whether there is one costs time linear in the number of calls. `threads` are the
    numbers of the threads that made them, if ranks have several: in which order those come to their groups is chance.
    """
    if len({call.group for call in issued}) < 2:
        return None
    by_rank: dict[int, list[Call]] = {}
    groups = set()
    for call, thread in zip(issued, threads or [call.rank for call in issued], strict=True):
        if not call.is_point_to_point and call.operation not in CREATING:  # they meet through the store
            by_rank.setdefault(thread, []).append(call)
            groups.add(call.group)
    if len(groups) < 2:
        return None
    tangled = _tangled([[(c.group, c.sequence) for c in calls] for calls in by_rank.values()])
    if not tangled:
        return None
    left = {r: [c for c in calls if (c.group, c.sequence) in tangled] for r, calls in sorted(by_rank.items())}
    return _inversion({rank: calls for rank, calls in left.items() if calls})


def _unwaited_work(run: WatchedRun) -> Iterable[Finding]:
    for calls in _by_line(run.calls(NoticedKind.UNWAITED)):
        cause = Cause.HOOK_DID_NOT_WAIT if are_of_hooks(calls) else Cause.NEVER_WAITED_FOR
        yield _at_line(Code.HAZARD_UNWAITED_WORK, calls, f"{_count(calls)} never waited for", cause.lines())


def _tensors_changed(run: WatchedRun) -> Iterable[Finding]:
    for calls in _by_line(run.calls(NoticedKind.CHANGED)):
        fact = f"a tensor of {_count(calls)} was changed by its owner before the wait"
        yield _at_line(Code.HAZARD_TENSOR_IN_FLIGHT, calls, fact, Cause.CHANGED_IN_FLIGHT.lines())


def _tensors_shared(run: WatchedRun) -> Iterable[Finding]:
    for calls in _by_line(run.calls(NoticedKind.SHARED)):
        fact = f"{_count(calls)} and a call in flight share memory, and one writes it"
        yield _at_line(Code.HAZARD_TENSOR_IN_FLIGHT, calls, fact, Cause.SHARED_IN_FLIGHT.lines())


def _tensors_read(run: WatchedRun) -> Iterable[Finding]:
    shown = {each.calls[0]: each.detail for each in reversed(run.noticed) if each.kind is NoticedKind.READ}
    for calls in _by_line(run.calls(NoticedKind.READ)):
        find = _undefined if calls[0].leaves_undefined else _early
        yield find(calls, shown[calls[0]])


def _early(calls: Sequence[Call], where: str) -> Finding:
    fact = f"a tensor of {_count(calls)} was read by its owner before the wait"
    return _at_line(Code.HAZARD_TENSOR_IN_FLIGHT, calls, fact, Cause.READ_IN_FLIGHT.lines(fact=where))


def _undefined(calls: Sequence[Call], where: str) -> Finding:
    fact = f"the tensor of {_count(calls)}, whose sum is on rank {calls[0].signature.root} only, was read"
    return _at_line(Code.HAZARD_UNDEFINED_RESULT, calls, fact, Cause.READ_UNDEFINED.lines(fact=where))


def _tags_ignored(run: WatchedRun) -> Iterable[Finding]:
    return messages_exchanged([call for call, _ in run.issued]) if run.have_returned else ()


def _names_in_other_order(run: WatchedRun) -> Iterable[Finding]:
    lines: dict[tuple[str, Site], dict[int, list[NamedCall]]] = {}
    for kind, calls, name in run.noticed if run.have_returned else ():
        if kind is NoticedKind.NAMED:
            (call,) = calls
            lines.setdefault((call.group, call.site), {}).setdefault(call.rank, []).append(NamedCall(call, name))
    return filter(None, map(exchanged, lines.values()))


def _lines_met(run: WatchedRun) -> Iterable[Finding]:
    met: dict[frozenset[Site], Sequence[Call]] = {}
    for each in run.noticed:
        if each.kind is NoticedKind.LINES_MEET:
            met.setdefault(frozenset(call.site for call in each.calls), each.calls)
    return map(_call_site, met.values())


HAZARDS: tuple[Callable[[WatchedRun], Iterable[Finding]], ...] = (
    _groups_in_other_order,
    _unwaited_work,
    _tensors_changed,
    _tensors_shared,
    _tensors_read,
    _tags_ignored,
    _names_in_other_order,
    _lines_met,
)
"""In the order of their findings."""


def _call_site(calls: Sequence[Call]) -> Finding:
    """Calls that met and were issued from different lines of the user's program."""
    sides = ranks_by((call.rank, call.site) for call in calls)
    culprits = minority(sides.values())
    summary = f"{calls[0].operation} calls of {' and '.join(map(str, sides))} meet"
    rows = [Row(call.rank, str(call), call.location, coordinates=call.coordinates) for call in calls]
    lines = _lines(Code.HAZARD_CALL_SITE, *table(rows), *Cause.LINES_MEET.lines())
    return Finding(Code.HAZARD_CALL_SITE, culprits, summary, lines, sites_of(calls, culprits), calls=tuple(calls))


def _tangled(orders: Iterable[Sequence[Slot]]) -> set[Slot]:
    """The slots on cycles, or on a path from one to another."""
    edges = dict.fromkeys(edge for slots in orders for edge in pairwise(slots))  # of many ranks nearly all are the same
    graph = Digraph(edges)
    tangled = [slot for knot in graph.knots() for slot in knot]
    return graph.ahead_of(tangled).keys() & graph.behind(tangled).keys()


def _inversion(left: dict[int, list[Call]]) -> Finding:
    """The first two groups that ranks use in different orders; if no two are, the whole circle."""
    ranks_of: dict[tuple[str, str], list[int]] = {}
    for rank, calls in left.items():
        for pair in combinations(sorted({call.group for call in calls}), 2):
            ranks_of.setdefault(pair, []).append(rank)
    for pair, ranks in ranks_of.items():
        orders = {rank: [call for call in left[rank] if call.group in pair] for rank in ranks}
        start = _first_difference(list(orders.values()))
        if start is not None:
            return _group_order_finding(pair, {rank: _two_groups(calls, start) for rank, calls in orders.items()})
    groups = tuple(sorted({call.group for calls in left.values() for call in calls}))
    return _group_order_finding(groups, {rank: _two_groups(calls, 0) for rank, calls in left.items()})


def _first_difference(orders: Sequence[Sequence[Call]]) -> int | None:
    for index, calls in enumerate(zip(*orders, strict=False)):
        if any((c.group, c.sequence) != (calls[0].group, calls[0].sequence) for c in calls):
            return index
    return None


def _two_groups(calls: Sequence[Call], start: int) -> tuple[Call, Call]:
    """A call and the next one on another group."""
    first = calls[start]
    return first, next((call for call in calls[start:] if call.group != first.group), calls[-1])


def _group_order_finding(groups: Sequence[str], pairs: Mapping[int, tuple[Call, Call]]) -> Finding:
    firsts = ranks_by((first.rank, first.group) for first, _ in pairs.values())
    # In a circle of more groups each rank has an order of its own.
    culprits = minority(firsts.values() if len(groups) == 2 else [{first.rank for first, _ in pairs.values()}])
    names = ", ".join(f'"{group}"' for group in groups)
    summary = f"ranks use groups {names} in different orders"
    rows = [
        Row(
            first.rank,
            f"{_named(first)}, then {_named(then)}",
            ", ".join(dict.fromkeys([str(first.site), str(then.site)])),
            coordinates=first.coordinates,
        )
        for _, (first, then) in sorted(pairs.items())
    ]
    lines = _lines(Code.HAZARD_GROUP_ORDER, *table(rows), *Cause.GROUP_ORDER.lines(fact=names))
    ordered = sorted(pairs.values(), key=lambda pair: (pair[0].rank not in culprits, pair[0].rank))
    calls = tuple(call for pair in ordered for call in pair)
    sites = tuple(dict.fromkeys(call.site for call in calls))
    return Finding(Code.HAZARD_GROUP_ORDER, culprits, summary, lines, sites, calls=calls)


def _by_line(calls: Sequence[Call]) -> list[list[Call]]:
    lines: dict[tuple[Site, str], list[Call]] = {}
    for call in calls:
        lines.setdefault((call.site, call.operation), []).append(call)
    return list(lines.values())


def _at_line(code: Code, calls: Sequence[Call], fact: str, advice: Sequence[Line]) -> Finding:
    ranks = tuple(sorted({call.rank for call in calls}))
    summary = f"{rank_list(ranks)}: {fact} ({calls[0].site})"
    first_of_rank = {call.rank: call for call in reversed(calls)}
    firsts = [first_of_rank[rank] for rank in ranks]
    rows = [Row(call.rank, str(call), call.location, coordinates=call.coordinates) for call in firsts]
    lines = _lines(code, f"  {summary}", *table(rows), *advice)
    return Finding(code, ranks, summary, lines, (calls[0].site,), calls=tuple(calls))


def _count(calls: Sequence[Call]) -> str:
    operation = calls[0].operation
    return f"{operation} #{calls[0].sequence}" if len(calls) == 1 else f"{len(calls)} calls of {operation}"


def _named(call: Call) -> str:
    return f'{call.operation} #{call.sequence} on "{call.group}"'


def _lines(code: Code, *lines: str | Line) -> tuple[str | Line, ...]:
    return (f"HAZARD  {code}", *lines)
