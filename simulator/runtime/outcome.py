"""What a run comes to: live ranks, their errors and their stacks, turned into the values that diagnosis works on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock import waiting_lines
from ddpsim.simulator.diagnosis.open_slots import open_slots
from ddpsim.simulator.diagnosis.rank_errors import kind, ran_out, rank_error, unused_indices
from ddpsim.simulator.diagnosis.snapshot import RankSnapshot, RankState, Snapshot, ThreadSnapshot
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.matching.point_to_point import PointToPointTable
from ddpsim.simulator.matching.slots import SlotTable
from ddpsim.simulator.runtime.call_sites import site_of_error, stack_text, traceback_text, waits_for_lock
from ddpsim.simulator.runtime.rank_thread import Rank, RankThread
from ddpsim.simulator.verdict import Code, Finding

# --- where everybody stands -------------------------------------------------------------------------------------------


def snapshot_of(
    ranks: Sequence[Rank],
    slots: SlotTable,
    messages: PointToPointTable,
    optimizer_steps: Sequence[int],
    step: int,
    events: Sequence[Event],
) -> Snapshot:
    """Every rank and every open slot, as frozen values."""
    stands = [_snapshot_of(rank, optimizer_steps[rank.rank]) for rank in ranks]
    issued = tuple(event.call for event in events if event.kind is EventKind.ISSUE and event.call is not None)
    return Snapshot(tuple(stands), open_slots(slots, messages), step, issued)


def _snapshot_of(rank: Rank, optimizer_steps: int) -> RankSnapshot:
    error = rank.error
    return RankSnapshot(
        rank.rank,
        RankState.RAISED if error else RankState.RETURNED if rank.is_finished else RankState.WAITING,
        rank.wait,
        rank.last_call,
        rank.calls_made,
        optimizer_steps,
        "" if error is None else one_line(error),
        site_of_error(error),
        dict(rank.destroyed),
        tuple(ThreadSnapshot(each.number, each.name, each.wait) for each in rank.threads if not each.is_main),
    )


# --- errors of ranks --------------------------------------------------------------------------------------------------


NameParameters = Callable[[int, Sequence[int]], Sequence[str]]
"""The names of a rank's parameters, by their indices in its wrapper; () if they cannot be told."""


def raised(errors: Mapping[int, BaseException], name_parameters: NameParameters | None = None) -> list[Finding]:
    """What ranks raised, in the order they did; the same error at the same line once for all.

    What finds fault with other ranks only comes after the rest, which those ranks may have raised themselves.
    """
    lines = {rank: one_line(error) for rank, error in errors.items()}
    alike: dict[tuple[str, Site | None], list[int]] = {}
    for rank, error in errors.items():
        alike.setdefault((kind(lines[rank]), site_of_error(error)), []).append(rank)
    found = [
        rank_error(
            {rank: lines[rank] for rank in ranks},
            site,
            traceback_text(errors[ranks[0]]),
            {rank: names for rank in ranks if (names := _unused(rank, errors[rank], name_parameters))},
            ran_out(lines),
        )
        for (_, site), ranks in alike.items()
    ]
    raisers = zip(alike.values(), found, strict=True)
    return [each for _, each in sorted(raisers, key=lambda pair: set(pair[0]).isdisjoint(pair[1].ranks))]


def _unused(rank: int, error: BaseException, name_parameters: NameParameters | None) -> Sequence[str]:
    """The parameters that an error says got no gradient: by name, or by index where names cannot be told."""
    indices = unused_indices(_message(error))
    names = name_parameters(rank, indices) if indices and name_parameters else ()
    return names or [f"parameter {index}" for index in indices]


def one_line(error: BaseException) -> str:
    """Type and message of an exception."""
    message = _message(error).split("\n", 1)[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _message(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # the message is the user's code, too
        return "<its message cannot be printed>"


# --- limits -----------------------------------------------------------------------------------------------------------


def stuck(rank: RankThread, budget: Budget, snapshot: Snapshot) -> Finding:
    """The running rank sleeps outside our control."""
    summary = f"{rank} has been blocked outside the simulation for {budget.stuck_seconds:g} s"
    is_at_lock = waits_for_lock(sys._current_frames().get(rank.ident))
    cause = Cause.BLOCKED_AT_LOCK if is_at_lock else Cause.BLOCKED_OUTSIDE
    return _ended("STUCK", Code.STUCK, rank, summary, cause, snapshot)


def out_of_time(rank: RankThread | None, budget: Budget, snapshot: Snapshot) -> Finding:
    """The run takes too long. Its ranks may go on meanwhile: each line is true of its own moment."""
    summary = f"the run took longer than {budget.seconds:g} s of wall time"
    return _ended("UNKNOWN", Code.BUDGET, rank, summary, Cause.OUT_OF_TIME, snapshot)


def out_of_steps(rank: RankThread, budget: Budget, snapshot: Snapshot) -> Finding:
    """The run takes too many choice points."""
    summary = f"the run took more than {budget.steps} steps"
    return _ended("UNKNOWN", Code.BUDGET, rank, summary, Cause.OUT_OF_STEPS, snapshot)


def spins(rank: RankThread, polls: int, snapshot: Snapshot) -> Finding:
    """A rank polls, and nobody else can run."""
    summary = f"{rank} polled {polls} times in a row while nobody else could run"
    return _ended("UNKNOWN", Code.BUDGET, rank, summary, Cause.POLLS_IN_VAIN, snapshot)


def _ended(kind: str, code: Code, rank: RankThread | None, summary: str, cause: Cause, snapshot: Snapshot) -> Finding:
    """A run that was cut short: what the other ranks wait for may say why."""
    lines = [f"{kind}  {code}", f"  {summary}", *waiting_lines(snapshot)]
    if rank is not None:
        stack = stack_text(sys._current_frames().get(rank.ident))
        lines += [f"  stack of {rank}", *("  " + line for line in stack.splitlines())]
    lines += cause.lines()
    return Finding(code, () if rank is None else (rank.rank,), summary, "\n".join(lines))
