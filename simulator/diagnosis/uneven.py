"""Loops that some ranks ran more often, and branches that only some ranks took: counts, and deadlocks they cause."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, Call, Phase, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock_snapshot import Snapshot, WaitReason
from ddpsim.simulator.diagnosis.explain import ranks_outside_largest
from ddpsim.simulator.diagnosis.rank_errors import MAY_FOLLOW
from ddpsim.simulator.matching.agreement import call_sites_differ
from ddpsim.simulator.operations import CREATING
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.waits import CallWait
from ddpsim.simulator.wording import LabelledLine, rank_list, ranks_by_value, values_by_key

COUNTERPART = {"send": "recv", "recv": "send"}
"""For each operation of a message (such as send), the operation on the other side (recv)."""

LoaderLines = tuple[Site, tuple[Site, int] | None]
"""The line that iterates over a data loader, and the line that made it, with its number among those made there."""

BatchCounts = Mapping[int, Mapping[LoaderLines, Sequence[int]]]
"""By rank and data loader, the number of batches of each loop in order."""

_LoopCounts = Iterator[tuple[str, Mapping[int, int]]]
"""For each loop, its text and how often each rank ran it."""

_A_LOOP = 2
"""The least number of calls from one line on a rank that shows a loop."""


def loop_counts(calls: Sequence[Call], issued: Sequence[Call], missing: Sequence[int] = ()) -> list[LabelledLine]:
    """Return a line of text for each loop that some ranks ran more often than others.

    Compared are the ranks of `calls` (which match each other or wait), and the ranks that are `missing` there.
    """
    loops = _unequal_loops(calls, issued, missing)
    return [LabelledLine("counts", f"{what} {_counts_text(times, 'time', 'times')}") for what, times in loops]


def add_batch_counts(
    findings: Iterable[Finding], batches: BatchCounts, issued: Sequence[Call] = ()
) -> Iterator[Finding]:
    """Add the data loaders' batch counts to findings that uneven data may cause, if the counts differ between ranks.

    Ranks are compared in the same loop over the same data loader of a line. `issued` are all calls of a deadlock: they
    may show that the call that waits belongs to a batch that only some ranks have.
    """
    counts = {loader: own for loader, own in _loader_counts(batches) if len(set(own.values())) > 1}
    lines = {
        site: LabelledLine("batches", f"the data loader of {site} has {_counts_text(own, 'batch', 'batches')}")
        for (site, _), own in counts.items()
    }
    for finding in findings:
        if lines and finding.code.value.startswith(MAY_FOLLOW):
            cause = [getattr(line, "label", "") for line in finding.lines].index("cause")
            surplus = (_surplus_batch_advice(finding, loader, batches, counts[loader], issued) for loader in counts)
            advice = next(filter(None, surplus), finding.lines[cause : cause + 2])
            kept = finding.lines[:cause], finding.lines[cause + 2 :]
            finding = replace(finding, lines=(*kept[0], *lines.values(), *advice, *kept[1]))
        yield finding


def _surplus_batch_advice(
    finding: Finding, loader: LoaderLines, batches: BatchCounts, last: Mapping[int, int], issued: Sequence[Call]
) -> list[LabelledLine]:
    """Return the advice if the program's call that waits belongs to a batch that the others do not have; [] if not.

    The others made as many calls of that line for each of their batches.
    """
    calls = finding.calls if finding.code is Code.DEADLOCK_MISSING_RANK else ()
    waiting = {call.rank for call in calls}
    others = last.keys() - waiting
    if not others or not waiting <= last.keys() or len({(call.site, call.origin.phase) for call in calls}) != 1:
        return []
    made = Counter(each.rank for each in issued if each.site == calls[0].site)
    times = {divmod(made[rank], sum(batches[rank][loader]) or 1) for rank in others}
    are_fewer = max(last[rank] for rank in others) < min(last[rank] for rank in waiting)
    if calls[0].origin.phase is not Phase.USER or not are_fewer or len(times) > 1 or not min(times)[0] or max(times)[1]:
        return []
    return Cause.RAN_OUT_OF_BATCHES.lines(rank_list(sorted(waiting)), calls[0].title, str(loader[0]))


def _unequal_loops(calls: Sequence[Call], issued: Sequence[Call], missing: Sequence[int]) -> _LoopCounts:
    ranks = dict.fromkeys([*(call.rank for call in calls), *missing])
    for what, times in (*_line_counts(calls, issued, ranks), *_wrapper_counts(calls, issued, ranks)):
        if len(set(times.values())) > 1 and max(times.values()) >= _A_LOOP:
            yield what, times


def _loader_counts(batches: BatchCounts) -> Iterator[tuple[LoaderLines, Mapping[int, int]]]:
    """Return, for each data loader, the ranks' batches in the last loop that all of these ranks began."""
    for loader in dict.fromkeys(loader for own in batches.values() for loader in own):
        loops = {rank: own[loader] for rank, own in batches.items() if loader in own}
        last = min(map(len, loops.values())) - 1
        yield loader, {rank: own[last] for rank, own in loops.items()}


def _line_counts(calls: Sequence[Call], issued: Sequence[Call], ranks: Iterable[int]) -> _LoopCounts:
    own = [call for call in calls if call.origin.phase is Phase.USER and call.operation not in CREATING]
    for call in {call.site: call for call in own if call.site != NOWHERE}.values():
        line = call.site, call.group, call.operation
        here = (one for one in issued if (one.site, one.group, one.operation) == line)
        made = Counter(one.rank for one in here if one.sequence <= call.sequence)
        yield f"{call.operation} at {call.site} was called", {rank: made[rank] for rank in ranks}


def _wrapper_counts(calls: Sequence[Call], issued: Sequence[Call], ranks: Iterable[int]) -> _LoopCounts:
    """Return what each rank's DDP wrapper has done; calls made for joined ranks do not count.

    Only calls are known. A forward makes one if it sends buffers, in evaluation too, where it is no step.
    """
    for wrapper in dict.fromkeys(call.origin.wrapper for call in calls if call.origin.wrapper is not None):
        waiting = {call.origin[:4] for call in calls if call.origin.wrapper == wrapper}
        phases = {Phase.BUFFERS} if len(waiting) == 1 and next(iter(waiting))[0] is Phase.BUFFERS else {Phase.BUCKET}
        steps: dict[int, set[int | None]] = {rank: set() for rank in ranks}
        for call in issued:
            origin = call.origin
            if origin.wrapper == wrapper and origin.phase in phases and not origin.shadow and call.rank in steps:
                steps[call.rank].add(origin.step)
        did = "went forward" if Phase.BUFFERS in phases else "began to reduce gradients"
        yield f"DDP #{wrapper} {did}", {rank: len(own) for rank, own in steps.items()}


def _counts_text(counts: Mapping[int, int], one: str, many: str) -> str:
    """Return the counts of ranks as text, the largest first: `3 times on rank 0; 1 time on ranks 1, 2`."""
    sides = sorted(ranks_by_value(counts.items()).items(), reverse=True)
    return "; ".join(f"{count} {one if count == 1 else many} on {rank_list(ranks)}" for count, ranks in sides)


#
# If a line's messages were matched with those of the peer's line, and the peer has left that line, then the order of
# the calls is right and the counts differ. The same holds if a rank waits for a message while the others wait for that
# rank in the collective of a loop, which it reached before, but less often than they did.


def advise_unequal_messages(calls: Sequence[Call], issued: Sequence[Call]) -> list[LabelledLine]:
    """Return the cause and what to try, if ranks of a cycle made unequal numbers of messages; else []."""
    gone = next(_peers_gone_on(calls, issued), None)
    return [] if gone is None else gone.advice_lines(issued)


def calls_made_again(
    calls: Sequence[Call], issued: Sequence[Call], missing: Sequence[int] = ()
) -> tuple[tuple[int, ...], list[LabelledLine]] | None:
    """Return the ranks and the advice if only one side of calls that wait or differ has made such calls again, in the
    recomputation of a checkpoint, and one of these met a call that was not, or meets none; None if not.

    `missing` are the ranks that ended without the call.
    """
    waiting = {call.rank: call for call in calls}
    for call in calls if any(each.origin.is_recomputed for each in issued) else ():
        if call.is_point_to_point:
            ways = _message_key(call), (call.peer, COUNTERPART[call.operation], call.rank, call.group, call.tag)
            sides = [[each for each in issued if _message_key(each) == way] for way in ways]
            met, members = [*zip(*sides, strict=False)], {call.rank, call.peer}
            meets_none = call.peer not in waiting or waiting[call.peer].is_point_to_point
        else:
            sides = [[each for each in issued if each.group == call.group and not each.is_point_to_point]]
            met = [tuple(each) for each in values_by_key((each.sequence, each) for each in sides[0]).values()]
            members, meets_none = {*missing, *(each.rank for each in sides[0])}, bool(missing)
        again = [each for side in sides for each in side if each.origin.is_recomputed]
        who = tuple(sorted({each.rank for each in again}))
        is_mixed = any(len({each.origin.is_recomputed for each in slot}) > 1 for slot in met)
        if 0 < len(who) < len(members) and (is_mixed or (meets_none and call.origin.is_recomputed)):
            first = next(each for each in again if each.rank == who[0])
            return who, Cause.RECOMPUTED.lines(rank_list(who), first.title, str(first.site))
    return None


class PeerGoneOn(NamedTuple):
    """A message that waits, and the call in which its peer waits, after it left the line that made the other side."""

    call: Call
    there: Call
    site: Site
    """The line that the peer left."""

    def advice_lines(self, issued: Sequence[Call]) -> list[LabelledLine]:
        """Return the cause and what to try."""
        call, there, site = self
        mine = _times_text(issued, call.rank, call.site)
        theirs = _times_text(issued, there.rank, site)
        other = COUNTERPART[call.operation]
        went_on = f"rank {there.rank} reached {other} at {site} {theirs} and continued at {there.site}"
        both_send = call.operation == there.operation == "send"
        cause = Cause.BOTH_SEND_IN_LOOPS if both_send else Cause.LOOPS_OF_MESSAGES_DIFFER
        if not there.is_point_to_point and all((each.rank, each.site) != (call.rank, there.site) for each in issued):
            cause = Cause.LEFT_OUT_OR_LOOPS_DIFFER
        return cause.lines(f"rank {call.rank}", call.operation, str(call.site), mine, went_on)


def _peers_gone_on(calls: Sequence[Call], issued: Sequence[Call]) -> Iterator[PeerGoneOn]:
    waiting = {call.rank: call for call in calls}
    for call in calls:
        there = waiting.get(call.peer) if call.peer is not None else None
        site = _peer_line(call, issued)
        if there is not None and site is not None and site != there.site:
            yield PeerGoneOn(call, there, site)


def left_loop_of_messages(
    calls: Sequence[Call], issued: Sequence[Call]
) -> tuple[tuple[int, ...], list[LabelledLine]] | None:
    """Return the ranks at fault and the advice, if messages wait for ranks that left a loop for a collective.

    To blame is the rank in every pair of a waiting rank and its peer; of one pair, the rank that made more or fewer
    calls of its line than every other rank there; both if neither did, or both.
    """
    pairs = [each for each in _peers_gone_on(calls, issued) if not each.there.is_point_to_point]
    if not pairs:
        return None
    involved = sorted({rank for each in pairs for rank in (each.call.rank, each.there.rank)})
    odd = [rank for rank in involved if all(rank in (each.call.rank, each.there.rank) for each in pairs)]
    if len(odd) == 2:
        lines = (pairs[0].call.rank, pairs[0].call.site, 1), (pairs[0].there.rank, pairs[0].site, -1)
        odd = [rank for rank, site, sign in lines if _is_odd_at_line(issued, rank, site, sign)]
    return tuple(odd if len(odd) == 1 else involved), pairs[0].advice_lines(issued)


def _is_odd_at_line(issued: Sequence[Call], rank: int, site: Site, sign: int) -> bool:
    """Return True if a rank made more calls of a line than every other rank there (fewer if `sign` is -1)."""
    times = Counter(call.rank for call in issued if call.site == site)
    others = [count for other, count in times.items() if other != rank]
    return bool(others) and all(sign * (times[rank] - count) > 0 for count in others)


def messages_after_loop(snapshot: Snapshot, reading: WaitReason) -> dict[int, Call]:
    """Return, by rank, the messages of ranks that made a loop's collective less often than the ranks that wait there.

    A line that sent or received before belongs to the loop itself. Callers are compared, too, because a function that
    communicates may be called outside the loop.
    """
    waiting = [calls[0] for rank in reading.victims if (calls := snapshot.ranks[rank].calls)]
    collectives = [call for call in waiting if not call.is_point_to_point]
    lines = {(call.site, call.caller) for call in collectives}
    issued = snapshot.issued
    of_loops = [each for each in issued if each.origin.phase is not Phase.USER or (each.site, each.caller) in lines]
    times = Counter((each.rank, each.site, each.caller) for each in issued)
    own = [call for call in waiting if call.is_point_to_point and call.rank in reading.cycle]
    messages = {call.rank: call for call in own if times[call.rank, call.site, call.caller] == 1}
    loops = [made for _, made in _unequal_loops(collectives, of_loops, tuple(messages))]
    return {rank: messages[rank] for rank in messages if any(made[rank] < max(made.values()) for made in loops)}


def _peer_line(call: Call, issued: Sequence[Call]) -> Site | None:
    """Return the peer's line whose messages matched messages of the call's line; None if there are several."""
    if call.peer in (None, ANY_SOURCE):
        return None
    way, other_way = _message_key(call), (call.peer, COUNTERPART[call.operation], call.rank, call.group, call.tag)
    own = [each for each in issued if _message_key(each) == way]
    others = [each for each in issued if _message_key(each) == other_way]
    sites = {other.site for each, other in zip(own, others, strict=False) if each.site == call.site}
    return sites.pop() if len(sites) == 1 else None


def _message_key(call: Call) -> tuple[int, str, int | None, str, int]:
    return call.rank, call.operation, call.peer, call.group, call.tag


def _times_text(issued: Sequence[Call], rank: int, site: Site) -> str:
    count = sum(each.rank == rank and each.site == site for each in issued)
    return "once" if count == 1 else f"{count} times"


#
# If some ranks took a branch with one more call, each later call is matched with another line's. In the end ranks wait
# at a correct line, which every rank reached equally often. If instead a rank returned early, the waiting ranks reached
# that line once more than the others.


class OffByOneBranch(NamedTuple):
    """The first call after which some ranks' calls are matched one call too early or too late."""

    operation: str
    ranks: Mapping[Site, tuple[int, ...]]
    """For each line of the program, the ranks that made the first such call there."""
    left_over: Site
    """The line of the program at which ranks wait in the end."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks outside the largest set of ranks with one line; all ranks if two sets are largest."""
        return ranks_outside_largest(self.ranks.values())

    @property
    def sites(self) -> list[Site]:
        """The lines of the program that made the call, the lines of ranks at fault first."""
        blamed = self.culprits
        order = {site: (ranks[0] not in blamed, site == self.left_over, ranks) for site, ranks in self.ranks.items()}
        return sorted(order, key=order.__getitem__)

    def advice_lines(self) -> list[LabelledLine]:
        """The advice (cause and what to try), as lines of the report."""
        sides = ", ".join(f"{rank_list(self.ranks[site])} at {site}" for site in self.sites)
        surplus = " and ".join(str(site) for site in self.sites if site != self.left_over)
        return Cause.CALLS_ONE_OFF.lines(operation=self.operation, sides=sides, site=surplus)


def find_off_by_one_branch(snapshot: Snapshot, reading: WaitReason) -> OffByOneBranch | None:
    """Return the call from which ranks' calls are one call apart, if ranks wait because of that; None if not."""
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
    met = values_by_key((call.sequence, call) for call in on_group if call.sequence < last.sequence)
    first = next((met[number] for number in sorted(met) if _come_from_different_lines(met[number])), None)
    return None if first is None else _make_off_by_one_branch(first, last)


def _come_from_different_lines(calls: list[Call]) -> bool:
    """Return True if the user's program made the calls from different lines, directly or through a shared function."""
    callers = {call.caller for call in calls}
    return call_sites_differ(calls) or (calls[0].origin.phase is Phase.USER and len(callers) > 1)


def _make_off_by_one_branch(calls: list[Call], left_over: Call) -> OffByOneBranch:
    """Return the branch for matched calls, by their callers' lines where callers differ (as for a metric's method)."""
    by_caller = len({call.caller for call in calls}) > 1
    lines = [call.caller or call.site if by_caller else call.site for call in (*calls, left_over)]
    ranks = ranks_by_value(zip([call.rank for call in calls], lines[:-1], strict=True))
    together = {site: tuple(sorted(own)) for site, own in ranks.items()}
    return OffByOneBranch(calls[0].title, together, lines[-1])
