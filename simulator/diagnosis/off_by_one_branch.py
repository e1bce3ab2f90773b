"""Calls that are off by one: some ranks took a branch with one more call, so each later call meets another line's call.

In the end ranks wait at an innocent line, which every rank reached equally often. If instead a rank returned early, the
waiting ranks reached that line once more than the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Phase, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock_snapshot import Snapshot, WaitReading
from ddpsim.simulator.diagnosis.explain import minority
from ddpsim.simulator.matching.agreement import call_sites_differ
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.waits import CallWait
from ddpsim.simulator.wording import Line, rank_list, ranks_by


class OffByOneBranch(NamedTuple):
    """The first call after which the ranks' calls are off by one."""

    operation: str
    ranks: Mapping[Site, tuple[int, ...]]
    """By line, the ranks that made the call there."""
    left_over: Site
    """The line at which ranks wait in the end."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks outside the largest side; all ranks if there is no largest side."""
        return minority(self.ranks.values())

    @property
    def sites(self) -> list[Site]:
        """The lines of the call, the culprits' lines first."""
        blamed = self.culprits
        order = {site: (ranks[0] not in blamed, site == self.left_over, ranks) for site, ranks in self.ranks.items()}
        return sorted(order, key=order.__getitem__)

    def lines(self) -> list[Line]:
        """The cause and what to try, as lines of the report."""
        sides = ", ".join(f"{rank_list(self.ranks[site])} at {site}" for site in self.sites)
        surplus = " and ".join(str(site) for site in self.sites if site != self.left_over)
        return Cause.CALLS_ONE_OFF.lines(operation=self.operation, sides=sides, site=surplus)


def find_off_by_one_branch(snapshot: Snapshot, reading: WaitReading) -> OffByOneBranch | None:
    """Return where calls became off by one, if ranks wait because of that."""
    waits = [snapshot.ranks[rank].wait for rank in reading.victims]
    calls = [call for wait in waits if isinstance(wait, CallWait) for call in wait.calls]
    is_one_line = len(calls) == len(waits) and len({(call.group, call.site, call.caller) for call in calls}) == 1
    if reading.code is not Code.DEADLOCK_MISSING_RANK or not is_one_line:
        return None
    last = calls[0]
    if last.is_point_to_point or last.origin.phase is not Phase.USER:
        return None
    on_group = [each for each in snapshot.issued if each.group == last.group and not each.is_point_to_point]
    times = Counter(call.rank for call in on_group if (call.site, call.caller) == (last.site, last.caller))
    waiting, gone = ({times[rank] for rank in ranks} for ranks in (reading.victims, reading.culprits))
    # A function called from a line may make several calls; a rank that waits in one has not made all of them.
    is_left_over = waiting == gone and len(gone) == 1 if last.caller is None else max(waiting) <= min(gone)
    if not is_left_over:
        return None
    met: dict[int, list[Call]] = {}
    for call in on_group:
        if call.sequence < last.sequence:
            met.setdefault(call.sequence, []).append(call)
    return next((_detour(met[number], last) for number in sorted(met) if _lines_differ(met[number])), None)


def _lines_differ(calls: list[Call]) -> bool:
    """True if the user's program made the calls from different lines, directly or through a function."""
    return call_sites_differ(calls) or (
        calls[0].origin.phase is Phase.USER and len({call.caller for call in calls}) > 1
    )


def _detour(calls: list[Call], left_over: Call) -> OffByOneBranch:
    """Build the result from a slot's calls, by their callers' lines where those differ (as for a metric's method)."""
    by_caller = len({call.caller for call in calls}) > 1
    lines = [call.caller or call.site if by_caller else call.site for call in (*calls, left_over)]
    ranks = ranks_by(zip([call.rank for call in calls], lines[:-1], strict=True))
    together = {site: tuple(sorted(own)) for site, own in ranks.items()}
    return OffByOneBranch(f"{calls[0].operation} #{calls[0].sequence}", together, lines[-1])
