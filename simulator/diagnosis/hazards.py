"""Hazards as findings: what passed here, and may hang or give wrong numbers under other backend semantics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.digraph import Digraph
from ddpsim.simulator.diagnosis.explain import Row, minority, sites_of, table
from ddpsim.simulator.diagnosis.hooks import are_of_hooks
from ddpsim.simulator.operations import CREATING
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, rank_list, ranks_by

Slot = tuple[str, int]
"""Group and sequence."""


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


class ReadEarly(NamedTuple):
    """A call whose owner read its tensors before it had waited."""

    call: Call
    where: str
    """Where that came to light: `what the program returned`."""


def unwaited_work(calls: Sequence[Call]) -> tuple[Finding, ...]:
    """Calls whose rank returned without waiting for them, one finding for each line."""
    return tuple(
        _at_line(
            Code.HAZARD_UNWAITED_WORK,
            same,
            f"{_count(same)} never waited for",
            (Cause.HOOK_DID_NOT_WAIT if are_of_hooks(same) else Cause.NEVER_WAITED_FOR).lines(),
        )
        for same in _by_line(calls)
    )


def tensor_in_flight(calls: Sequence[Call]) -> tuple[Finding, ...]:
    """Calls whose tensors their owner changed before it waited for them, one finding for each line."""
    return tuple(
        _at_line(
            Code.HAZARD_TENSOR_IN_FLIGHT,
            same,
            f"a tensor of {_count(same)} was changed by its owner before the wait",
            Cause.CHANGED_IN_FLIGHT.lines(),
        )
        for same in _by_line(calls)
    )


def tensors_shared(calls: Sequence[Call]) -> tuple[Finding, ...]:
    """Calls that share memory with another one in flight, one finding for each line."""
    return tuple(
        _at_line(
            Code.HAZARD_TENSOR_IN_FLIGHT,
            same,
            f"{_count(same)} and a call in flight share memory, and one writes it",
            Cause.SHARED_IN_FLIGHT.lines(),
        )
        for same in _by_line(calls)
    )


def tensor_read(reads: Sequence[ReadEarly]) -> tuple[Finding, ...]:
    """Calls whose tensors their owner read before it waited for them, or that left them undefined, for each line."""
    where = {each.call: each.where for each in reversed(reads)}
    return tuple(
        _undefined(same, where[same[0]]) if same[0].leaves_undefined else _early(same, where[same[0]])
        for same in _by_line([each.call for each in reads])
    )


def _early(calls: Sequence[Call], where: str) -> Finding:
    fact = f"a tensor of {_count(calls)} was read by its owner before the wait"
    return _at_line(Code.HAZARD_TENSOR_IN_FLIGHT, calls, fact, Cause.READ_IN_FLIGHT.lines(fact=where))


def _undefined(calls: Sequence[Call], where: str) -> Finding:
    fact = f"the tensor of {_count(calls)}, whose sum is on rank {calls[0].signature.root} only, was read"
    return _at_line(Code.HAZARD_UNDEFINED_RESULT, calls, fact, Cause.READ_UNDEFINED.lines(fact=where))


def call_site(calls: Sequence[Call]) -> Finding:
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
