"""Replay: the answers of a recorded schedule, then the default."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.choices import ChoicePoint, Schedule
from simulator.errors import ReplayDivergedError


class Replay:
    """Gives the recorded answers in order. Zeros at the end are not recorded, so after them come zeros."""

    def __init__(self, schedule: Schedule) -> None:
        self._answers = schedule.answers
        self._next = 0

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the next recorded answer; raise ReplayDivergedError if there is no such option."""
        if self._next >= len(self._answers):
            return 0
        answer = self._answers[self._next]
        self._next += 1
        if answer >= len(options):
            raise ReplayDivergedError(
                f"replay diverged at step {point.step}: the schedule takes option {answer} of a {point.kind.value} "
                f"choice, but only {list(options)} are open: the program or its input has changed since the recording"
            )
        return answer

    def check_used_up(self) -> None:
        """Raise ReplayDivergedError if the run is over and recorded answers are left."""
        left = len(self._answers) - self._next
        if left > 0:
            raise ReplayDivergedError(
                f"replay diverged: the run ended after {self._next} choices, but the schedule has {left} more: "
                "the program or its input has changed since the recording"
            )
