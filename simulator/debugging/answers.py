"""The texts that debugger commands about all ranks print, made from an `ExecutionView`, a snapshot of the run."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.debugging.session_host import DebuggerCommandError, DebuggerTopic
from ddpsim.simulator.debugging.stacks import shorten_stack
from ddpsim.simulator.diagnosis.deadlock import rank_rows
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenCalls, RankState, Snapshot
from ddpsim.simulator.diagnosis.explain import TableRow, format_table
from ddpsim.simulator.diagnosis.mismatch import find_early_mismatches
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.verdict import Finding
from ddpsim.simulator.waits import ThreadWait
from ddpsim.simulator.wording import rank_list, ranks_by_value

_MOST_CALLS = 16
"""The number of latest calls that `calls` shows."""


@dataclass(frozen=True, slots=True)
class ExecutionView:
    """A snapshot of the state of a run."""

    snapshot: Snapshot
    running: int | None = None
    """The rank that runs now; all others wait for their turn."""
    here: int | None = None
    """The rank in which the debugger is open."""
    findings: tuple[Finding, ...] = ()
    """The errors found so far. Calls that differ between ranks are among them, even if other ranks lack theirs."""
    enabled: frozenset[int] = frozenset()
    """The ranks that can run, including the rank that runs now."""
    places: Mapping[int, Site] = field(default_factory=dict)
    """The current line of each rank's program, if known."""
    stacks: Mapping[int, str] = field(default_factory=dict)
    """The stack of each rank, formatted as in a traceback."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.snapshot.ranks)


def make_view(run: RunState, here: int | None, places: Mapping[int, Site], stacks: Mapping[int, str]) -> ExecutionView:
    """Return a snapshot for a debugger in rank `here`; `places` and `stacks` are the ranks' current lines, stacks."""
    early = tuple(
        finding for _, finding in find_early_mismatches(run.slots, run.steps, run.all_calls(), run.tensor_names())
    )
    running = None if run.running is None else run.running.rank_number
    enabled = frozenset(rank.rank for rank in run.ranks if rank.main.is_enabled)
    shown = {rank: shorten_stack(stack, os.getcwd()) for rank, stack in stacks.items()}
    return ExecutionView(run.snapshot(), running, here, tuple(run.findings) or early, enabled, places, shown)


def reason_not_debuggable(run: RunState, rank: int, has_begun: Callable[[], bool]) -> str:
    """Return why no debugger can be opened in a rank; "" if one can. `has_begun` is called only if the rank exists."""
    if rank >= len(run.ranks):
        return f"there is no rank {rank}, expected 0 to {len(run.ranks) - 1}"
    main = run.ranks[rank].main
    if main.is_finished:
        how = "raised" if run.ranks[rank].error is not None else "returned"
        return f"rank {rank} has {how}: its program has no frame left to show"
    if isinstance(main.wait, ThreadWait) and main.wait.is_at_end:
        return f"rank {rank}'s program has ended and waits for its threads: it has no frame left to show"
    if not has_begun():
        return f"rank {rank} has not begun yet: it has no frame to show"
    return ""


def answer_command(topic: DebuggerTopic, argument: str, view: ExecutionView) -> str:
    """Return the text that a debugger command prints. Raises DebuggerCommandError for an invalid argument."""
    if argument and topic is not DebuggerTopic.CALLS:
        raise DebuggerCommandError(f"{topic.value} takes no argument, found {argument!r}")
    return _ANSWERS[topic](view) if topic is not DebuggerTopic.CALLS else answer_calls(view, argument)


def answer_ranks(view: ExecutionView) -> str:
    """Return one line for each rank: what it does or waits for, and where."""
    return "\n".join(format_table([row for rank in range(view.world_size) for row in _rows_of_rank(view, rank)]))


def _rows_of_rank(view: ExecutionView, rank: int) -> list[TableRow]:
    snapshot = view.snapshot.ranks[rank]
    if rank not in view.enabled and (snapshot.state is not RankState.WAITING or snapshot.waits):
        return rank_rows(view.snapshot, snapshot)
    what = "paused here" if rank == view.here else "running" if rank == view.running else "can run"
    last = snapshot.last_call
    after = f"after {last.operation} #{last.sequence}" if last else "before its first call"
    place = str(view.places.get(rank) or (last.site if last else ""))
    own = TableRow(rank, what, place, after, coordinates=last.coordinates if last else "")
    return [own, *(row for row in rank_rows(view.snapshot, snapshot) if row.thread)]


def answer_slots(view: ExecutionView) -> str:
    """Return the text of command `slots`: the calls that wait for other ranks, with the arrived and missing ranks."""
    lines = []
    for slot in view.snapshot.open_slots:
        lines.append(f"  {slot.calls[0]}   {_arrived_and_missing(slot)}")
        sides = ranks_by_value((call.rank, f"{call.location}{_origin_suffix(call)}") for call in slot.calls)
        lines += [f"    {rank_list(ranks)}  {side}" for side, ranks in sides.items()]
    if any(finding.code.startswith("mismatch.") for finding in view.findings):
        lines.append("  calls that should match differ: type `why` to see how")
    return "\n".join(lines) or "  no call waits for another"


def _arrived_and_missing(slot: OpenCalls) -> str:
    if not slot.calls[0].is_point_to_point:
        return slot.presence_text
    other = "any rank" if slot.any_suffices else rank_list(slot.missing)
    sender = slot.calls[0].operation == "send"
    return f"{rank_list(slot.arrived_ranks)} sends, {other} has not received" if sender else f"nothing from {other} yet"


def _origin_suffix(call: Call) -> str:
    return "" if call.origin.is_of_program else f"  {call.origin}"


def answer_calls(view: ExecutionView, argument: str = "") -> str:
    """Return the latest calls, one line each: the rank, the source line, and whether the call still waits."""
    if argument and not (argument.isdecimal() and int(argument) < view.world_size):
        raise DebuggerCommandError(
            f"rank is {argument!r}, expected 0 to {view.world_size - 1}, or nothing for all ranks"
        )
    chosen = [call for call in view.snapshot.issued if not argument or call.rank == int(argument)]
    waiting = {id(call) for slot in view.snapshot.open_slots for call in slot.calls}
    lines = _format_calls(chosen[-_MOST_CALLS:], lambda call: id(call) in waiting)
    more = len(chosen) - _MOST_CALLS
    return "\n".join([f"  ... {more} earlier calls"] * (more > 0) + lines) or "  no call yet"


def _format_calls(calls: Sequence[Call], waits: Callable[[Call], bool]) -> list[str]:
    states = [f"{'waits' if waits(call) else 'matched'}{_origin_suffix(call)}" for call in calls]
    cells = [(f"rank {call.rank}", str(call), call.location, state) for call, state in zip(calls, states, strict=True)]
    widths = [max((len(cell[column]) for cell in cells), default=0) for column in range(3)]
    return [
        "  " + "  ".join(f"{each:<{width}}" for each, width in zip(cell, [*widths, 0], strict=True)) for cell in cells
    ]


def answer_why(view: ExecutionView) -> str:
    """Return the errors found; if there are none yet, which ranks can run, and which ranks wait for which."""
    if view.findings:
        return "\n\n".join(finding.body for finding in view.findings)
    lines = ["  nothing is wrong so far"]
    if view.enabled:
        lines.append(f"  {rank_list(view.enabled)} can run")
    for waiting in WaitGraph(view.snapshot).list_waiting():
        others = sorted({who.rank for who in waiting.waits_for})
        any_of = "any of " * (waiting.any_suffices and len(others) > 1)
        for_whom = f"{any_of}{rank_list(others)}" if others else "the clock"
        lines.append(f"  {waiting.who} waits for {for_whom}: {waiting.wait}")
    return "\n".join(lines)


def answer_where(view: ExecutionView) -> str:
    """Return the stacks of all ranks, innermost frame last; ranks with equal stacks share one."""
    every = range(view.world_size)
    stacks = [view.stacks.get(rank) or f"  {_state_without_stack(view, rank)}" for rank in every]
    lines = []
    for text, ranks in ranks_by_value(enumerate(stacks)).items():
        is_stack = any(rank in view.stacks for rank in ranks)
        if not is_stack and len(ranks) > 1:
            text = text.replace("  has ", "  have ", 1)
        lines.append(f"{rank_list(ranks)}\n{text.rstrip()}" if is_stack else f"{rank_list(ranks)}{text}")
    return "\n".join(lines)


def _state_without_stack(view: ExecutionView, rank: int) -> str:
    row = next(iter(rank_rows(view.snapshot, view.snapshot.ranks[rank])), None)
    return "has not begun" if row is None or rank in view.enabled else row.what


_ANSWERS: Mapping[DebuggerTopic, Callable[[ExecutionView], str]] = {
    DebuggerTopic.RANKS: answer_ranks,
    DebuggerTopic.SLOTS: answer_slots,
    DebuggerTopic.WHY: answer_why,
    DebuggerTopic.WHERE: answer_where,
}
