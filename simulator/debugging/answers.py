"""What a debugger says of all ranks, from a plain view of an execution: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.debugging.session_host import CannotError, Topic
from ddpsim.simulator.debugging.stacks import alike
from ddpsim.simulator.diagnosis.deadlock import rows_of
from ddpsim.simulator.diagnosis.explain import Row, table
from ddpsim.simulator.diagnosis.standstill import OpenSlot, RankState, Snapshot
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.verdict import Finding
from ddpsim.simulator.wording import rank_list, ranks_by

_MOST_CALLS = 16
"""So many of the latest calls are told."""


@dataclass(frozen=True, slots=True)
class View:
    """An execution as it stands."""

    snapshot: Snapshot
    running: int | None = None
    """The rank that has the baton."""
    here: int | None = None
    """The rank in which the debugger that asks has the word."""
    findings: tuple[Finding, ...] = ()
    """What was found; also calls that do not agree although others have not come yet."""
    enabled: frozenset[int] = frozenset()
    """The ranks that can go on, the running one among them."""
    places: Mapping[int, Site] = field(default_factory=dict)
    """The line of its program at which a rank stands, as far as it is known."""
    stacks: Mapping[int, str] = field(default_factory=dict)
    """Where ranks stand, as tracebacks have it."""

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.snapshot.ranks)


def answer(topic: Topic, argument: str, view: View) -> str:
    """What is said of a topic. Raises CannotError for an argument that it does not have."""
    if argument and topic is not Topic.CALLS:
        raise CannotError(f"{topic.value} takes no word behind it, found {argument!r}: leave it out")
    return _ANSWERS[topic](view) if topic is not Topic.CALLS else calls_text(view, argument)


def ranks_text(view: View) -> str:
    """A line for each rank: what it does or waits for, and where."""
    return "\n".join(table([row for rank in range(view.world_size) for row in _rows(view, rank)]))


def _rows(view: View, rank: int) -> list[Row]:
    snapshot = view.snapshot.ranks[rank]
    if rank not in view.enabled and (snapshot.state is not RankState.WAITING or snapshot.waits):
        return rows_of(view.snapshot, snapshot)
    what = "stands here" if rank == view.here else "has the turn" if rank == view.running else "can go on"
    last = snapshot.last_call
    after = f"after {last.operation} #{last.sequence}" if last else "before its first call"
    place = str(view.places.get(rank) or (last.site if last else ""))
    own = Row(rank, what, place, after, coordinates=last.coordinates if last else "")
    return [own, *(row for row in rows_of(view.snapshot, snapshot) if row.thread)]


def slots_text(view: View) -> str:
    """The calls that wait for others, who has come and who is missing; that calls differ which met."""
    lines = []
    for slot in view.snapshot.open_slots:
        lines.append(f"  {slot.calls[0]}   {_presence(slot)}")
        sides = ranks_by((call.rank, f"{call.location}{_origin(call)}") for call in slot.calls)
        lines += [f"    {rank_list(ranks)}  {side}" for side, ranks in sides.items()]
    if any(finding.code.startswith("mismatch.") for finding in view.findings):
        lines.append("  the calls of a slot differ: why tells them")
    return "\n".join(lines) or "  no call waits for another"


def _presence(slot: OpenSlot) -> str:
    if not slot.calls[0].is_point_to_point:
        return slot.presence
    other = "any rank" if slot.any_suffices else rank_list(slot.missing)
    sender = slot.calls[0].operation == "send"
    return f"{rank_list(slot.arrived)} sends, {other} has not come" if sender else f"nothing from {other} yet"


def _origin(call: Call) -> str:
    return "" if call.origin.is_programs else f"  {call.origin}"


def calls_text(view: View, argument: str = "") -> str:
    """The latest calls, a line each: whose they are, where, and whether they still wait."""
    if argument and not (argument.isdecimal() and int(argument) < view.world_size):
        raise CannotError(
            f"rank is {argument!r}, expected one of 0 to {view.world_size - 1}: give one, or none for all"
        )
    chosen = [call for call in view.snapshot.issued if not argument or call.rank == int(argument)]
    waiting = {id(call) for slot in view.snapshot.open_slots for call in slot.calls}
    lines = _lines_of_calls(chosen[-_MOST_CALLS:], lambda call: id(call) in waiting)
    more = len(chosen) - _MOST_CALLS
    return "\n".join([f"  ... {more} before these"] * (more > 0) + lines) or "  no call yet"


def _lines_of_calls(calls: Sequence[Call], waits: Callable[[Call], bool]) -> list[str]:
    cells = [
        (f"rank {call.rank}", str(call), call.location, f"{'waits' if waits(call) else 'met'}{_origin(call)}")
        for call in calls
    ]
    widths = [max((len(cell[column]) for cell in cells), default=0) for column in range(3)]
    return [
        "  " + "  ".join(f"{each:<{width}}" for each, width in zip(cell, [*widths, 0], strict=True)) for cell in cells
    ]


def why_text(view: View) -> str:
    """What was found; or what can be said before: calls that will not agree, and who waits for whom."""
    if view.findings:
        return "\n\n".join(finding.body for finding in view.findings)
    lines = ["  nothing is wrong so far"]
    if view.enabled:
        lines.append(f"  {rank_list(view.enabled)} can go on")
    for waiting in WaitGraph(view.snapshot).waiting():
        others = sorted({who.rank for who in waiting.waits_for})
        for_whom = (
            f"{'any of ' * (waiting.any_suffices and len(others) > 1)}{rank_list(others)}" if others else "the clock"
        )
        lines.append(f"  {waiting.who} waits for {for_whom}: {waiting.wait}")
    return "\n".join(lines)


def where_text(view: View) -> str:
    """The stacks of all ranks, innermost last; of ranks that stand alike once."""
    told = [(rank, view.stacks.get(rank) or f"  {_ended(view, rank)}") for rank in range(view.world_size)]
    lines = []
    for ranks, text in alike(told):
        is_stack = any(rank in view.stacks for rank in ranks)
        if not is_stack and len(ranks) > 1:
            text = text.replace("  has ", "  have ", 1)
        lines.append(f"{rank_list(ranks)}\n{text.rstrip()}" if is_stack else f"{rank_list(ranks)}{text}")
    return "\n".join(lines)


def _ended(view: View, rank: int) -> str:
    row = next(iter(rows_of(view.snapshot, view.snapshot.ranks[rank])), None)
    return "has not begun" if row is None or rank in view.enabled else row.what


_ANSWERS: Mapping[Topic, Callable[[View], str]] = {
    Topic.RANKS: ranks_text,
    Topic.SLOTS: slots_text,
    Topic.WHY: why_text,
    Topic.WHERE: where_text,
}
