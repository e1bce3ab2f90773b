"""Deadlocks: the readings of the wait-for graph as findings, with a line for each rank."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.calls import ANY_SOURCE, Call, Phase, Site
from simulator.diagnosis import wait_graph
from simulator.diagnosis.explain import heading, indent, rank_list, shortened, table
from simulator.diagnosis.situation import Meeting, RankSituation, Situation, Standing
from simulator.diagnosis.wait_graph import Reading
from simulator.verdict import Code, Finding
from simulator.waits import CallWait, ClockWait, StoreWait


def deadlocks(situation: Situation) -> tuple[Finding, ...]:
    """One finding for each reading of the wait-for graph."""
    rows = _Rows(situation)
    return tuple(_finding(situation, rows, reading) for reading in wait_graph.read(situation))


def waiting_lines(situation: Situation) -> list[str]:
    """A line for each rank that waits, for a run that ended for another reason."""
    rows = _Rows(situation)
    waiting = [rows.of(rank) for rank in situation.ranks if rank.wait is not None]
    return table(waiting) if waiting else []


def _finding(situation: Situation, rows: _Rows, reading: Reading) -> Finding:
    ranks = [situation.ranks[rank] for rank in sorted({*reading.victims, *reading.culprits})]
    lines = [
        heading("DEADLOCK", reading.code, situation.step),
        *table([rows.of(rank) for rank in ranks]),
        *_origin_lines(ranks),
    ]
    if reading.cycle:
        lines.append(indent("cycle", " -> ".join(map(str, [*reading.cycle, reading.cycle[0]]))))
    cause, remedy = _explain(situation, reading)
    lines += [indent("cause", cause), indent("try", remedy)]
    sites = [site for rank in _culprits_first(ranks, reading) for site in _sites(rank)]
    return Finding(
        reading.code,
        reading.culprits,
        _summary(reading),
        "\n".join(lines),
        tuple(dict.fromkeys(sites)),
        reading.cycle,
    )


def _culprits_first(ranks: Sequence[RankSituation], reading: Reading) -> list[RankSituation]:
    return sorted(ranks, key=lambda rank: (rank.rank not in reading.culprits, rank.rank))


def _sites(rank: RankSituation) -> list[Site]:
    if isinstance(rank.wait, CallWait):
        return [call.site for call in rank.wait.calls]
    if rank.wait is not None:
        return [rank.wait.site]
    if rank.error_site is not None:
        return [rank.error_site]
    return [rank.last_call.site] if rank.last_call else []


class _Rows:
    """The line of each rank in the table. What a meeting is short of is put in words once for all its ranks."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._presence: dict[int, str] = {}
        """By index of the meeting."""

    def of(self, rank: RankSituation) -> tuple[int, str, str, str]:
        """Rank, what it does, where, and who is missing there."""
        if rank.standing is Standing.RAISED:
            return rank.rank, f"raised {shortened(rank.error)}", str(rank.error_site or ""), _after(rank)
        if rank.standing is Standing.RETURNED:
            site = str(rank.last_call.site) if rank.last_call else ""
            return rank.rank, "returned " + _after(rank), site, ""
        wait = rank.wait
        if isinstance(wait, StoreWait):
            return rank.rank, f"waits for store key {', '.join(map(repr, wait.keys))}", str(wait.site), "nobody sets it"
        if isinstance(wait, ClockWait) or wait is None:
            return rank.rank, "waits for the clock", "", ""
        call = wait.calls[0]
        more = f" (or one of {len(wait.calls) - 1} other calls)" if len(wait.calls) > 1 else ""
        return rank.rank, f"waits in {call}{more}", str(call.site), self._presence_at(call)

    def _presence_at(self, call: Call) -> str:
        index = self._situation.meeting_by_call.get(call)
        if index is None:
            return ""
        if index not in self._presence:
            self._presence[index] = _presence(self._situation.meetings[index], call)
        return self._presence[index]


def _presence(meeting: Meeting, call: Call) -> str:
    if call.is_point_to_point:
        needed = "any rank" if call.peer == ANY_SOURCE else f"rank {call.peer}"
        return f"nothing from {needed}" if call.operation == "recv" else f"not received by {needed}"
    return f"arrived {_short(meeting.arrived)} · missing {_short(meeting.missing)}"


def _short(ranks: tuple[int, ...]) -> str:
    return rank_list(ranks).partition(" ")[2]


def _origin_lines(ranks: Sequence[RankSituation]) -> list[str]:
    """What the calls that ranks wait in belong to, if not to the user's own program; once for all ranks."""
    calls = [call for rank in ranks if isinstance(rank.wait, CallWait) for call in rank.wait.calls[:1]]
    texts = [
        f"{call.operation} #{call.sequence}{_on_group(call)} is {_origin(call)}" for call in calls if _is_ddps(call)
    ]
    return [indent("call", text) for text in dict.fromkeys(texts)]


def _is_ddps(call: Call) -> bool:
    return call.origin.phase is not Phase.USER


def _origin(call: Call) -> str:
    names = ", ".join(call.origin.parameters[:4]) + (", ..." if len(call.origin.parameters) > 4 else "")
    return f"{call.origin} ({names})" if names else str(call.origin)


def _after(rank: RankSituation) -> str:
    call, steps = rank.last_call, rank.optimizer_steps
    text = f"after {call.operation} #{call.sequence}" + _on_group(call) if call else "before its first call"
    return text + (f" ({steps} iteration{'s' * (steps != 1)})" if steps else "")


def _on_group(call: Call) -> str:
    return "" if call.group == "default" else f' on "{call.group}"'


def _summary(reading: Reading) -> str:
    victims = rank_list(reading.victims) + (" wait" if len(reading.victims) > 1 else " waits")
    culprits = ("any of " if reading.any_suffices else "") + rank_list(reading.culprits)
    if reading.code is Code.DEADLOCK_CYCLE:
        return f"{rank_list(reading.cycle)} wait for each other in a circle"
    if reading.code is Code.DEADLOCK_DEAD_RANK:
        return f"{victims} for {culprits}, which raised"
    if set(reading.culprits) <= set(reading.victims):
        return f"{victims} for something that nobody will do"
    return f"{victims} for {culprits}, which returned"


def _explain(situation: Situation, reading: Reading) -> tuple[str, str]:
    """What usually causes this, and what to try."""
    waits = [situation.ranks[rank].wait for rank in reading.victims]
    calls = [call for wait in waits if isinstance(wait, CallWait) for call in wait.calls]
    if reading.code is Code.DEADLOCK_DEAD_RANK:
        return (
            f"{rank_list(reading.culprits)} left by an exception, and the others wait for calls it will never make",
            "fix the exception; in production, abort the group on an error so that its peers end too",
        )
    if reading.code is Code.DEADLOCK_CYCLE:
        return _explain_cycle(situation, reading)
    if not calls or any(isinstance(situation.ranks[rank].wait, StoreWait) for rank in reading.culprits):
        return "nobody who still runs will set the key", "set the key on another rank before it is waited for"
    if reading.any_suffices:
        return (
            f"none of {rank_list(reading.culprits)} sent what would have been received, and all have returned",
            "receive as many messages as are sent",
        )
    if _has_passed(situation, reading, calls):
        return (
            f"{rank_list(reading.culprits)} made the optimizer step without reducing this bucket: its loss does not "
            "depend on these parameters",
            "let every rank's loss depend on the model's output, multiplied by zero where there is nothing to learn",
        )
    if any(call.origin.phase not in (Phase.USER, Phase.PARAMETER_CHECK) for call in calls):
        return (
            f"{rank_list(reading.culprits)} ran out of input before the others and nothing shadows its collectives",
            "wrap the loop in `with model.join():`",
        )
    if calls and calls[0].is_point_to_point:
        return (
            f"{rank_list(reading.culprits)} returned without the matching {_counterpart(calls[0])}",
            "give every send one recv with the same peer, group and tag",
        )
    return (
        f"{rank_list(reading.culprits)} returned without making {calls[0].operation} #{calls[0].sequence}",
        "let every rank of the group make the same calls in the same order",
    )


def _has_passed(situation: Situation, reading: Reading, calls: Sequence[Call]) -> bool:
    """True if ranks wait in a bucket of a step that the missing ones have behind them."""
    done = [situation.ranks[rank].optimizer_steps for rank in reading.culprits]
    waiting = [situation.ranks[rank].optimizer_steps for rank in reading.victims]
    return all(call.origin.phase is Phase.BUCKET for call in calls) and min(done, default=0) > max(waiting, default=0)


def _counterpart(call: Call) -> str:
    return "recv" if call.operation == "send" else "send"


def _explain_cycle(situation: Situation, reading: Reading) -> tuple[str, str]:
    waits = [situation.ranks[rank].wait for rank in reading.cycle]
    calls = [wait.calls[0] for wait in waits if isinstance(wait, CallWait)]
    operations = {call.operation for call in calls}
    if operations == {"send"}:
        return (
            "every rank of the cycle sends before it receives, and a send waits for its recv",
            "order the calls by the parity of the rank, or give both to batch_isend_irecv",
        )
    if operations == {"recv"}:
        return (
            "every rank of the cycle receives before it sends",
            "let one rank send first, or give both calls to batch_isend_irecv",
        )
    groups = list(dict.fromkeys(call.group for call in calls if not call.is_point_to_point))
    if len(groups) > 1:
        names = " and ".join(f'"{group}"' for group in groups)
        return f"the ranks call groups {names} in different orders", "let every rank use its groups in one global order"
    return (
        "each rank of the cycle waits in a call that the next one reaches only after its own",
        "let the ranks make the calls they share in one order",
    )
