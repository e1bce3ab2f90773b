"""Did the ranks of a program meet at all? One that makes no group runs once for each rank, and shows nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.events import EventKind
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.wording import rank_list

_MEETING = (EventKind.ISSUE, EventKind.STORE)


def note_of_apart(program: str, returns: Sequence[object], trace: Trace) -> str:
    """What is to be said of a run that passed; "" if ranks met, or there is one."""
    if len(returns) == 1 or any(event.kind in _MEETING for event in trace.events):
        return ""
    left = [rank for rank, value in enumerate(returns) if value == 0]
    how = (
        f"{rank_list(left)} left by sys.exit(0)"
        if left
        else f"all {len(returns)} ranks ran to their ends, each for itself"
    )
    return f"{program} made no process group and used no store: {how}"
