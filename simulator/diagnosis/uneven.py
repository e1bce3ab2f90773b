"""Counts, for findings: how often each rank reached the lines, or used the wrappers, whose calls met or wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ddpsim.simulator.calls import NOWHERE, Call, Phase, Site
from ddpsim.simulator.operations import CREATING
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, rank_list, ranks_by

_MAY_FOLLOW = (Code.DEADLOCK_MISSING_RANK, Code.DEADLOCK_CYCLE)

_A_LOOP = 2
"""A rank that reached a line this often reached it in a loop."""


def counts(calls: Sequence[Call], issued: Sequence[Call], missing: Sequence[int] = ()) -> list[Line]:
    """Return a line for each loop that some ranks ran through more often than others.

    Compared are the ranks of `calls` (which met or wait), and the ranks that are `missing` there.
    """
    return [Line("counts", f"{what} {_times(times)}") for what, times in _unequal(calls, issued, missing)]


def behind(calls: Sequence[Call], issued: Sequence[Call], missing: Sequence[int]) -> tuple[int, ...]:
    """Return the missing ranks that ran through such a loop less often than others."""
    loops = [times for _, times in _unequal(calls, issued, missing)]
    return tuple(rank for rank in missing if any(times[rank] < max(times.values()) for times in loops))


def with_batches(findings: Iterable[Finding], batches: Mapping[int, Mapping[Site, Sequence[int]]]) -> Iterator[Finding]:
    """Add the data loaders' batch counts to findings that uneven data may cause, if the counts differ between ranks.

    `batches` has, by rank and line, the count of each loop in order. Ranks are compared in the same loop.
    """
    lines = list(_of_loaders(batches))
    for finding in findings:
        if lines and (finding.code in _MAY_FOLLOW or finding.code.value.startswith("mismatch.")):
            cause = next(i for i, line in enumerate(finding.lines) if isinstance(line, Line) and line.label == "cause")
            finding = replace(finding, lines=(*finding.lines[:cause], *lines, *finding.lines[cause:]))
        yield finding


def _unequal(
    calls: Sequence[Call], issued: Sequence[Call], missing: Sequence[int]
) -> Iterator[tuple[str, Mapping[int, int]]]:
    ranks = dict.fromkeys([*(call.rank for call in calls), *missing])
    for what, times in (*_of_lines(calls, issued, ranks), *_of_wrappers(calls, issued, ranks)):
        if len(set(times.values())) > 1 and max(times.values()) >= _A_LOOP:
            yield what, times


def _of_loaders(batches: Mapping[int, Mapping[Site, Sequence[int]]]) -> Iterator[Line]:
    for site in dict.fromkeys(site for own in batches.values() for site in own):
        loops = {rank: own[site] for rank, own in batches.items() if site in own}
        last = min(map(len, loops.values())) - 1
        sides = sorted(ranks_by((rank, own[last]) for rank, own in loops.items()).items(), reverse=True)
        if len(sides) > 1:
            counts = "; ".join(f"{count} batch{'es' * (count != 1)} on {rank_list(ranks)}" for count, ranks in sides)
            yield Line("batches", f"the data loader of {site} has {counts}")


def _of_lines(
    calls: Sequence[Call], issued: Sequence[Call], ranks: Iterable[int]
) -> Iterator[tuple[str, Mapping[int, int]]]:
    own = [
        call
        for call in calls
        if call.site != NOWHERE and call.origin.phase is Phase.USER and call.operation not in CREATING
    ]
    for call in {call.site: call for call in own}.values():
        line = call.site, call.group
        made = Counter(
            each.rank for each in issued if (each.site, each.group) == line and each.sequence <= call.sequence
        )
        yield f"{call.operation} at {call.site} was called", {rank: made[rank] for rank in ranks}


def _of_wrappers(
    calls: Sequence[Call], issued: Sequence[Call], ranks: Iterable[int]
) -> Iterator[tuple[str, Mapping[int, int]]]:
    """Count synchronising forwards by wrapper and rank; calls that `join()` makes for a joined rank do not count."""
    for wrapper in dict.fromkeys(call.origin.wrapper for call in calls if call.origin.wrapper is not None):
        steps = dict.fromkeys(ranks, 0)
        for call in issued:
            origin = call.origin
            if origin.wrapper == wrapper and not origin.shadow and call.rank in steps:
                steps[call.rank] = max(steps[call.rank], origin.step or 0)
        yield f"DDP #{wrapper} went forward", steps


def _times(times: Mapping[int, int]) -> str:
    sides = sorted(ranks_by(times.items()).items(), reverse=True)
    return "; ".join(f"{count} time{'s' * (count != 1)} on {rank_list(ranks)}" for count, ranks in sides)
