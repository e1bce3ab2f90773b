"""Who did how much: how often each rank came to the lines, or through the wrappers, whose calls met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ddpsim.simulator.calls import Call, Phase
from ddpsim.simulator.wording import Line, rank_list, ranks_by

_A_LOOP = 2
"""Who came to a line so often came in a loop."""


def counts(calls: Sequence[Call], issued: Sequence[Call]) -> list[Line]:
    """A line for each loop that some of the ranks whose calls met have gone through more often than others."""
    ranks = [call.rank for call in calls]
    return [
        Line("counts", f"{what} {_times(times)}")
        for what, times in (*_of_lines(calls, issued), *_of_wrappers(calls, issued))
        if len({times[rank] for rank in ranks}) > 1 and max(times.values()) >= _A_LOOP
    ]


def _of_lines(calls: Sequence[Call], issued: Sequence[Call]) -> Iterator[tuple[str, Mapping[int, int]]]:
    for call in {call.site: call for call in calls if call.origin.phase is Phase.USER}.values():
        made = Counter(each.rank for each in issued if (each.site, each.group) == (call.site, call.group))
        yield f"{call.operation} at {call.site} was called", {each.rank: made[each.rank] for each in calls}


def _of_wrappers(calls: Sequence[Call], issued: Sequence[Call]) -> Iterator[tuple[str, Mapping[int, int]]]:
    """Synchronising forwards; what a rank makes for others after it has run out of input is none of its own."""
    for wrapper in dict.fromkeys(call.origin.wrapper for call in calls if call.origin.wrapper is not None):
        steps = dict.fromkeys((call.rank for call in calls), 0)
        for call in issued:
            origin = call.origin
            if origin.wrapper == wrapper and not origin.shadow and call.rank in steps:
                steps[call.rank] = max(steps[call.rank], origin.step or 0)
        yield f"DDP #{wrapper} went forward", steps


def _times(times: Mapping[int, int]) -> str:
    sides = sorted(ranks_by(times.items()).items(), reverse=True)
    return ", ".join(f"{count} time{'s' * (count != 1)} on {rank_list(ranks)}" for count, ranks in sides)
