"""Makes findings about deadlocks from the wait-for graph, each with a line of text for every rank."""

from collections.abc import Sequence

from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, Call, Site
from ddpsim.simulator.diagnosis.deadlock_causes import advise_deadlock, find_blame, ranks_at_fault
from ddpsim.simulator.diagnosis.deadlock_snapshot import OF_RECORDS, RankSnapshot, RankState, Snapshot, WaitReason
from ddpsim.simulator.diagnosis.explain import TableRow, finding_heading, format_table, shorten_list, sites_with_callers
from ddpsim.simulator.diagnosis.message_outliers import MessageOutlier, find_message_outlier
from ddpsim.simulator.diagnosis.rank_errors import error_as_verb
from ddpsim.simulator.diagnosis.thread_findings import cycle_text, describe_thread_wait, merge_thread_deadlocks
from ddpsim.simulator.diagnosis.uneven import find_off_by_one_branch, loop_counts, messages_after_loop
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.waits import CallWait, ClockWait, LockWait, OutsideWait, StoreWait, ThreadWait, Wait
from ddpsim.simulator.wording import LabelledLine, join_names, rank_list, ranks_by_value

_MOST_CALLS = 4
"""The most different calls that a summary lists."""


def find_deadlocks(graph: WaitGraph) -> tuple[Finding, ...]:
    """Return one finding for each deadlock in the graph. Equal deadlocks of threads on several ranks share one."""
    snapshot = graph.snapshot
    readings = merge_thread_deadlocks(snapshot, graph.find_wait_reasons())
    of_messages = [reading for reading in readings if _wait_for_messages(snapshot, reading)]
    involved = {rank for reading in of_messages for rank in (*reading.victims, *reading.culprits)}
    odd = find_message_outlier(snapshot, involved) if of_messages else None
    if odd is None:
        return tuple(_deadlock_finding(snapshot, reading) for reading in readings)
    first, *others = sorted(readings, key=lambda reading: _distance_from_outlier(reading, odd))
    later = (_deadlock_finding(snapshot, each, root=odd if each in of_messages else None) for each in others)
    return (_deadlock_finding(snapshot, first, odd), *later)


def waiting_lines(snapshot: Snapshot) -> list[str]:
    """Return a line for each waiting rank or thread, of a run that ended for another reason than a deadlock."""
    return format_table([row for rank in snapshot.ranks for row in _rows_of_rank(snapshot, rank, ended=False)])


def lines_of_ranks(snapshot: Snapshot, ranks: Sequence[int]) -> tuple[str, ...]:
    """Return a line for each of these ranks: what it waits for, or how it ended."""
    rows = [row for rank in ranks for row in _rows_of_rank(snapshot, snapshot.ranks[rank], ended=True)]
    return tuple(format_table(rows))


def rank_rows(snapshot: Snapshot, rank: RankSnapshot) -> list[TableRow]:
    """Return rows for the finding's table: one for a rank, and one for each of its waiting threads."""
    return _rows_of_rank(snapshot, rank, ended=rank.state is not RankState.WAITING)


def _distance_from_outlier(reading: WaitReason, odd: MessageOutlier) -> int:
    """Return a sort key: waits of the outlier's rank (the rank to blame) come first, then waits for that rank."""
    rank = odd.call.rank
    return 0 if rank in reading.victims else 1 if rank in reading.culprits else 2


def _deadlock_finding(
    snapshot: Snapshot, reading: WaitReason, odd: MessageOutlier | None = None, root: MessageOutlier | None = None
) -> Finding:
    """Return the finding for one deadlock. `odd` is the message to blame, if there is one. `root` is the message to
    blame for an earlier deadlock, which may have caused this one, too."""
    ranks = [snapshot.ranks[rank] for rank in sorted({*reading.victims, *reading.culprits})]
    lines: list[str | LabelledLine] = [
        finding_heading(reading.code, snapshot.choice_points),
        *format_table([row for rank in ranks for row in _rows_of_rank(snapshot, rank, ended=True)]),
        *_origin_lines(ranks),
    ]
    if reading.cycle:
        circle = shorten_list([str(rank) for rank in (*reading.cycle, reading.cycle[0])])
        lines.append(LabelledLine("cycle", " -> ".join(circle)))
    if reading.threads:
        lines.append(LabelledLine("cycle", cycle_text(snapshot, reading.threads)))
    blame = find_blame(snapshot, reading)
    lines += _loop_counts(snapshot, reading)
    if blame is None and odd is None:
        lines += _tie_note(snapshot, reading)
    sites: list[Site] = []
    one_off = find_off_by_one_branch(snapshot, reading)
    if blame is not None:
        culprits = blame.ranks
        lines += blame.lines
    elif one_off is not None:
        culprits, sites = one_off.culprits, one_off.sites
        lines += one_off.advice_lines()
    elif odd is not None:
        culprits, sites = (odd.call.rank,), [odd.call.site]
        lines += odd.lines
    else:
        culprits = ranks_at_fault(snapshot, reading)
        lines += advise_deadlock(snapshot, reading, culprits)
    if root is not None:
        root_call = f"rank {root.call.rank} made {root.call.title} at {root.call.site}"
        lines.append(LabelledLine("note", f"this may only be a consequence of the first finding: {root_call}"))
    ordered = sorted(ranks, key=lambda rank: (rank.rank not in culprits, rank.rank))
    leavers = () if _wait_in_own_collectives(snapshot, reading) else culprits
    sites += [site for rank in ordered for site in _sites_of_rank(rank, has_left=rank.rank in leavers)]
    ends = [call for rank in ordered for call in (rank.calls or (rank.last_call,)) if call is not None]
    return Finding(
        reading.code,
        culprits,
        _summarize_wait(snapshot, reading),
        tuple(lines),
        sites_with_callers(sites, ends),
        reading.cycle,
        tuple(call for rank in ranks for call in rank.calls),
    )


def _loop_counts(snapshot: Snapshot, reading: WaitReason) -> list[LabelledLine]:
    """Return lines that say how often the waiting and the missing ranks ran a loop."""
    is_cycle = reading.code is Code.DEADLOCK_CYCLE
    missing = tuple(messages_after_loop(snapshot, reading)) if is_cycle else reading.culprits
    if not missing or not (is_cycle or reading.code is Code.DEADLOCK_MISSING_RANK):
        return []
    calls = [call for call in snapshot.calls_of(reading.victims) if not call.is_point_to_point]
    known = [rank for rank in missing if snapshot.ranks[rank].state is not RankState.UNRECORDED]
    return loop_counts(calls, snapshot.issued, known) if calls else []


def _tie_note(snapshot: Snapshot, reading: WaitReason) -> list[LabelledLine]:
    """Return a note if equally many ranks wait and are missing; [] if not.

    For one rank against one, only if the program's own call waits: that call may be in a branch that one rank took.
    """
    count = len(reading.victims)
    is_tie = count == len(reading.culprits) and set(reading.victims).isdisjoint(reading.culprits)
    calls = snapshot.calls_of(reading.victims)
    is_told = is_tie and (count > 1 or (bool(calls) and all(call.origin.is_of_program for call in calls)))
    if reading.code is not Code.DEADLOCK_MISSING_RANK or not is_told:
        return []
    sides = f"{rank_list(reading.victims)} arrived, {rank_list(reading.culprits)} did not"
    size = "one rank against one" if count == 1 else f"{count} ranks against {count}"
    return [LabelledLine("note", f"a tie, {size}: {sides}; either may be wrong")]


def _wait_in_own_collectives(snapshot: Snapshot, reading: WaitReason) -> bool:
    """Return True if ranks wait in collectives that the user's program calls, not DDP."""
    calls = snapshot.calls_of(reading.victims)
    return bool(calls) and all(call.origin.is_of_program and not call.is_point_to_point for call in calls)


def _wait_for_messages(snapshot: Snapshot, reading: WaitReason) -> bool:
    """Return True if ranks wait for messages, no rank is dead, and no rank waits for its own threads."""
    codes = (Code.DEADLOCK_CYCLE, Code.DEADLOCK_MISSING_RANK)
    return reading.code in codes and any(call.is_point_to_point for call in snapshot.calls_of(reading.victims))


def _sites_of_rank(rank: RankSnapshot, *, has_left: bool) -> list[Site]:
    """Return the lines where a rank waits, raised or ended. If the rank `has_left` a loop, its last line comes first.

    `has_left` is False if others wait in the program's own call: a destroyed group may be the reason, not a loop's end.
    """
    if rank.waits:
        others = [wait.site for wait in rank.waits if not isinstance(wait, CallWait) and wait.site != NOWHERE]
        return [call.site for call in rank.calls] + others
    if rank.error_site is not None:
        return [rank.error_site]
    last = rank.last_call.site if has_left and rank.last_call is not None else None
    return [site for site in (last, _describe_end(rank)[1]) if site is not None]


def _rows_of_rank(snapshot: Snapshot, rank: RankSnapshot, *, ended: bool) -> list[TableRow]:
    """Return table rows for a rank (if it waits, or if `ended` ranks are listed, too) and for its waiting threads."""
    rows = [_row_of_main_thread(snapshot, rank)] if ended or rank.wait is not None else []
    for thread in rank.threads:
        if thread.wait is not None:
            rows.append(TableRow(rank.rank, *_describe_wait(snapshot, rank, thread.number, thread.wait), thread.name))
    coordinates = next((call.coordinates for call in (rank.last_call, *rank.calls) if call is not None), "")
    return [row._replace(coordinates=coordinates) for row in rows]


def _row_of_main_thread(snapshot: Snapshot, rank: RankSnapshot) -> TableRow:
    """Return the table row of a rank's main thread: how it ended, or what it waits for."""
    last, after = rank.last_call, _latest_progress_text(rank)
    if rank.state is RankState.RAISED:
        return TableRow(rank.rank, error_as_verb(rank.error), str(rank.error_site or ""), after)
    if rank.state is RankState.UNRECORDED:
        return TableRow(rank.rank, f"left a record that ends {after}" if last else "left no record of a call")
    if rank.state is RankState.SILENT:
        what, where = (f"made no call {after}", last.location) if last else ("made no call", "")
        return TableRow(rank.rank, what, where)
    if rank.state is RankState.RETURNED:
        what, site = _describe_end(rank)
        where = last.location if last is not None and site is last.site else str(site or "")
        return TableRow(rank.rank, f"{what} {after}", where)
    return TableRow(rank.rank, *_describe_wait(snapshot, rank, rank.rank, rank.wait))


def _describe_wait(snapshot: Snapshot, rank: RankSnapshot, number: int, wait: Wait | None) -> tuple[str, str, str]:
    """Return text on what a thread waits for, at which line, and which ranks have not made the call."""
    if isinstance(wait, StoreWait):
        return f"waits for {wait}", str(wait.site), "no rank has set " + ("it" if len(wait.keys) == 1 else "them")
    if isinstance(wait, (LockWait, ThreadWait)):
        return describe_thread_wait(snapshot, rank, number, wait)
    if isinstance(wait, OutsideWait):
        return (
            f"waits for {wait}",
            str(wait.site),
            "which no rank lets go" if wait.is_of_ranks else "outside the simulation",
        )
    if isinstance(wait, ClockWait) or wait is None:
        return "waits for the clock", "", ""
    call = wait.calls[0]
    return f"waits in {wait}", call.location, _describe_missing(snapshot, call)


def _describe_missing(snapshot: Snapshot, call: Call) -> str:
    if call in snapshot.stream_by_queued:
        first = snapshot.stream_by_queued[call].started[0]
        return f"queued behind {first.title}{_group_suffix(first)} at {first.location}"
    if call not in snapshot.open_calls_by_call:
        return ""
    if call.is_point_to_point:
        needed = "any rank" if call.peer == ANY_SOURCE else f"rank {call.peer}"
        return f"nothing from {needed}" if call.operation == "recv" else f"not received by {needed}"
    return snapshot.open_slots[snapshot.open_calls_by_call[call]].presence_text


def _describe_end(rank: RankSnapshot) -> tuple[str, Site | None]:
    last = rank.last_call
    site = rank.destroyed.get(last.group, NOWHERE) if last else NOWHERE
    if last is not None and site != NOWHERE:  # an exit handler of torch's is no line of the program
        return f'destroyed group "{last.group}" and returned', site
    return "returned", last.site if last else None


def _origin_lines(ranks: Sequence[RankSnapshot]) -> list[LabelledLine]:
    """Return lines that say which part of torch (DDP, FSDP, ...) made the waiting calls; [] for the program's own."""
    calls = [call for rank in ranks for wait in rank.waits if isinstance(wait, CallWait) for call in wait.calls[:1]]
    texts: dict[str, None] = {}
    for call in calls:
        if not call.origin.is_of_program:
            names = join_names(call.origin.parameters, 4)
            origin = f"{call.origin.text_in_findings()} ({names})" if names else call.origin.text_in_findings()
            texts[f"{call.title}{_group_suffix(call)} is {origin}"] = None
    return [LabelledLine("call", text) for text in texts]


def _latest_progress_text(rank: RankSnapshot) -> str:
    call, steps = rank.last_call, rank.optimizer_steps
    text = f"after {call.title}{_group_suffix(call)}" if call else "before its first call"
    return text + (f" ({steps} iteration{'s' * (steps != 1)})" if steps else "")


def _group_suffix(call: Call) -> str:
    return "" if call.group == "default" else f' on "{call.group}"'


def _summarize_wait(snapshot: Snapshot, reading: WaitReason) -> str:
    """Return one line that names the waiting ranks and what they wait for."""
    victims = _waiting_ranks_text(reading.victims)
    culprits = ("any of " if reading.any_suffices else "") + rank_list(reading.culprits)
    if reading.code is Code.DEADLOCK_CYCLE:
        return f"{rank_list(reading.cycle)} wait for each other in a circle"
    if reading.code is Code.DEADLOCK_THREADS:
        for_what = "each other" if reading.threads else "something that no thread will do"
        return f"threads of {culprits} wait for {for_what}"
    if reading.code is Code.DEADLOCK_DEAD_RANK:
        return _summary_of_dead_ranks(snapshot, reading.victims, culprits)
    if set(reading.culprits) <= set(reading.victims):
        return f"{victims} for something that no rank will do"
    states = {snapshot.ranks[rank].state for rank in reading.culprits}
    if states & set(OF_RECORDS):
        end = "which did not arrive" if RankState.SILENT in states else "and no record shows whether it arrived"
        return f"{victims} for {culprits}, {end}"
    return f"{victims} for {culprits}, which returned"


def _waiting_ranks_text(ranks: Sequence[int]) -> str:
    return rank_list(ranks) + (" wait" if len(ranks) > 1 else " waits")


def _summary_of_dead_ranks(snapshot: Snapshot, victims: Sequence[int], culprits: str) -> str:
    """Return one line that names the dead ranks, and the calls in which other ranks wait."""
    calls = ranks_by_value((rank, _first_call_text(snapshot.ranks[rank])) for rank in victims)
    dead = f"for {culprits}, which raised"
    if len(calls) == 1:
        return f"{_waiting_ranks_text(victims)}{next(iter(calls))} {dead}"
    sides = [rank_list(ranks) + call for call, ranks in calls.items() if call]
    return f"{_waiting_ranks_text(victims)} {dead}: {join_names(sides, _MOST_CALLS)}"


def _first_call_text(rank: RankSnapshot) -> str:
    """Return text on the first call in which the rank or its thread waits; "" if no call is waited for."""
    call = next(iter(rank.calls), None)
    return f" in {call.title}{_group_suffix(call)} at {call.location}" if call else ""
