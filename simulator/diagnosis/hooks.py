"""Causes for the calls of DDP communication hooks that differ between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.calls import Call, Phase
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.wording import Line, rank_list

_WITHOUT_HOOK = frozenset({Phase.USED_MAP, Phase.REBUILD, Phase.BUFFERS})
"""What a wrapper does after its buckets."""


def are_of_hooks(calls: Sequence[Call]) -> bool:
    """True if communication hooks made all the calls."""
    return all(call.origin.by_hook for call in calls)


def sites_text(calls: Sequence[Call]) -> str:
    """Return the lines that made the calls, as text."""
    return " and ".join(dict.fromkeys(str(call.site) for call in calls))


def advise_hooks(calls: Sequence[Call], culprits: Sequence[int], who: str) -> list[Line]:
    """Return the cause and what to try, for calls of one wrapper that do not agree; [] if the hook is not the cause.

    A hook gets the buckets in order, each in every step. So within one step only the hook can omit a call or make one
    more; between steps, a backward may also have been omitted. Calls that a hook chains with `then` have no such order:
    they may meet a call of another bucket although the hooks are equal, and no rank is at fault.
    """
    hooked = [call for call in calls if call.origin.by_hook]
    others = [call for call in calls if call not in hooked]
    if not hooked or _are_filled_otherwise(calls) or not {call.origin.phase for call in others} <= _WITHOUT_HOOK:
        return []
    if sorted(call.rank for call in others) == sorted(culprits):
        return Cause.HOOK_MADE_NO_CALL.lines(who=who, site=sites_text(hooked))
    return (not others and (_one_off(calls) or _crossing(calls))) or Cause.HOOK_CALLS_DIFFER.lines(
        who=who, site=sites_text([call for call in hooked if call.rank in culprits])
    )


def _one_off(calls: Sequence[Call]) -> list[Line]:
    """Return the advice for calls of several steps; [] if all belong to one step."""
    latest = max(call.origin.step or 0 for call in calls)
    ahead = [call.rank for call in calls if call.origin.step == latest]
    behind = [call.rank for call in calls if call.rank not in ahead]
    if not ahead or not behind:
        return []
    return Cause.HOOK_ONE_OFF.lines(site=sites_text(calls), ahead=rank_list(ahead), behind=rank_list(behind))


def _crossing(calls: Sequence[Call]) -> list[Line]:
    """Return the advice for calls of several buckets, some of them chained; [] for others."""
    if len({call.origin.bucket for call in calls}) == 1 or not any(call.origin.is_chained for call in calls):
        return []
    return Cause.HOOK_CHAINS_CROSS.lines(fact=sites_text(calls))


def _are_filled_otherwise(calls: Sequence[Call]) -> bool:
    """True if a bucket has different parameters on some ranks."""
    buckets = {(call.origin.bucket, call.origin.parameters) for call in calls}
    return len(buckets) > len({bucket for bucket, _ in buckets})
