"""What diagnosis looks at: every rank as it stood when nobody could go on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from simulator.calls import Call, Site
from simulator.waits import CallWait, Wait


class Standing(Enum):
    """Where a rank stands when nobody is enabled."""

    WAITING = "waiting"
    RETURNED = "returned"
    RAISED = "raised"


@dataclass(frozen=True, slots=True)
class RankSituation:
    """One rank."""

    rank: int
    standing: Standing
    wait: Wait | None = None
    last_call: Call | None = None
    calls_made: int = 0
    optimizer_steps: int = 0
    error: str = ""
    """Type and message of what it raised."""
    error_site: Site | None = None


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where waiting calls meet: a slot that is not full, or one side of a message."""

    calls: tuple[Call, ...]
    missing: tuple[int, ...]
    """Global ranks that have not come."""
    any_suffices: bool = False
    """True if one of the missing ranks is enough (a receive from any source)."""

    @property
    def arrived(self) -> tuple[int, ...]:
        """The ranks that are here."""
        return tuple(sorted(call.rank for call in self.calls))


@dataclass(frozen=True, slots=True)
class Situation:
    """All ranks and all open meetings, when nobody was enabled."""

    ranks: tuple[RankSituation, ...]
    meetings: tuple[Meeting, ...]
    step: int = 0

    def meeting_of(self, call: Call) -> Meeting | None:
        """The meeting a call waits in."""
        return next((meeting for meeting in self.meetings if call in meeting.calls), None)

    def meetings_of(self, rank: RankSituation) -> list[Meeting]:
        """The meetings a rank waits in."""
        if not isinstance(rank.wait, CallWait):
            return []
        return [m for m in map(self.meeting_of, rank.wait.calls) if m is not None]
