"""The note for a passed run whose ranks never communicated: no group, no store, so the run shows nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.events import EventKind
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.wording import rank_list

_MEETING = (EventKind.ISSUE, EventKind.STORE)


def no_communication_note(program: str, returns: Sequence[object], trace: Trace) -> str:
    """Return the note for a run that passed; "" if its ranks communicated, or if there is only one rank."""
    if len(returns) == 1 or any(event.kind in _MEETING for event in trace.events):
        return ""
    left = [rank for rank, value in enumerate(returns) if value == 0]
    how = (
        f"{rank_list(left)} left by sys.exit(0)"
        if left
        else f"all {len(returns)} ranks ended without any communication"
    )
    return f"{program} made no process group and used no store: {how}"
