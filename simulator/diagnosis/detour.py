"""Calls that are one off: some ranks made a call that met another line's, and every later one meets the one after it.

What is left over in the end is an innocent line, which every rank came to as often. That tells the detour from a branch
of each rank's own, after which a rank leaves early: there the line that is left over was made once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Phase, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import minority
from ddpsim.simulator.diagnosis.reading import Reading
from ddpsim.simulator.diagnosis.standstill import Snapshot
from ddpsim.simulator.matching.agreement import call_sites_differ
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.waits import CallWait
from ddpsim.simulator.wording import Line, rank_list, ranks_by


class Detour(NamedTuple):
    """Where calls got one off."""

    operation: str
    ranks: Mapping[Site, tuple[int, ...]]
    """Who was at which line."""
    left_over: Site
    """The line in which ranks wait in the end."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks whose line is not that of most; all if no line is."""
        return minority(self.ranks.values())

    @property
    def sites(self) -> list[Site]:
        """The lines, the culprits' first."""
        blamed = self.culprits
        order = {site: (ranks[0] not in blamed, site == self.left_over, ranks) for site, ranks in self.ranks.items()}
        return sorted(order, key=order.__getitem__)

    def lines(self) -> list[Line]:
        """The cause and what to try."""
        sides = ", ".join(f"{rank_list(self.ranks[site])} at {site}" for site in self.sites)
        surplus = " and ".join(str(site) for site in self.sites if site != self.left_over)
        return Cause.CALLS_ONE_OFF.lines(operation=self.operation, sides=sides, site=surplus)


def detour(snapshot: Snapshot, reading: Reading) -> Detour | None:
    """Where calls got one off, if ranks wait because of that; None if not."""
    waits = [snapshot.ranks[rank].wait for rank in reading.victims]
    calls = [call for wait in waits if isinstance(wait, CallWait) for call in wait.calls]
    is_one_line = len(calls) == len(waits) and len({(call.group, call.site) for call in calls}) == 1
    if reading.code is not Code.DEADLOCK_MISSING_RANK or not is_one_line:
        return None
    last = calls[0]
    if last.is_point_to_point or last.origin.phase is not Phase.USER:
        return None
    on_group = [each for each in snapshot.issued if each.group == last.group and not each.is_point_to_point]
    times = Counter(call.rank for call in on_group if call.site == last.site)
    if len({times[rank] for rank in (*reading.victims, *reading.culprits)}) > 1:
        return None
    met: dict[int, list[Call]] = {}
    for call in on_group:
        if call.sequence < last.sequence:
            met.setdefault(call.sequence, []).append(call)
    return next((_detour(met[number], last.site) for number in sorted(met) if call_sites_differ(met[number])), None)


def _detour(calls: list[Call], left_over: Site) -> Detour:
    ranks = ranks_by((call.rank, call.site) for call in calls)
    together = {site: tuple(sorted(own)) for site, own in ranks.items()}
    return Detour(f"{calls[0].operation} #{calls[0].sequence}", together, left_over)
