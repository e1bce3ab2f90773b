"""The jobs in progress, side by side; each is handed on when it is over, and its turn has come."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from ddpsim.scenarios.agreement.outcome import RankOutcome
from ddpsim.scenarios.agreement.pool.job import Job
from ddpsim.scenarios.agreement.pool.server_link import PoolError, ServerLink
from ddpsim.scenarios.agreement.pool.team import Team


@dataclass(slots=True)
class _Turn:
    """A job that has not been handed on."""

    team: Team
    outcomes: tuple[RankOutcome, ...] | None = None
    """Once it is over."""


class Running:
    """Some jobs in progress; a context manager, which ends those that are in progress when it is left."""

    def __init__(self, server: ServerLink, timeout_seconds: float) -> None:
        self._server = server
        self._timeout_seconds = timeout_seconds
        self._selector = selectors.DefaultSelector()
        self._turns: deque[_Turn] = deque()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._selector.close()
        for turn in self._in_progress():
            with suppress(PoolError):  # a server that is gone has taken them along
                turn.team.end()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def fill(self, jobs: Iterator[Job], most: int) -> None:
        """Start jobs until so many are in progress, or none is left."""
        for _ in range(most - len(self._in_progress())):
            if (job := next(jobs, None)) is None:
                return
            team = Team(job, self._server, timeout_seconds=self._timeout_seconds, now=time.monotonic())
            self._turns.append(turn := _Turn(team))
            for channel in team.channels:
                self._selector.register(channel, selectors.EVENT_READ, turn)

    def wait(self) -> None:
        """Wait until something happens, or until one should look, and do what is to be done then."""
        in_progress = self._in_progress()
        if not in_progress:
            return
        pause = min(turn.team.next_look for turn in in_progress) - time.monotonic()
        for key, _ in self._selector.select(max(pause, 0.0)):
            if not key.data.team.hear(key.fileobj, time.monotonic()):
                self._selector.unregister(key.fileobj)
        for turn in in_progress:
            if time.monotonic() >= turn.team.next_look:
                turn.team.look(time.monotonic())
            if turn.team.is_over:
                self._end(turn)

    def over(self) -> Iterator[tuple[Job, tuple[RankOutcome, ...]]]:
        """The jobs that are over, as far as all before them are."""
        while self._turns and (outcomes := self._turns[0].outcomes) is not None:
            yield self._turns.popleft().team.job, outcomes

    def _end(self, turn: _Turn) -> None:
        for channel in turn.team.channels:
            with suppress(KeyError):  # of a rank that has died
                self._selector.unregister(channel)
        turn.outcomes = turn.team.end()

    def _in_progress(self) -> list[_Turn]:
        return [turn for turn in self._turns if turn.outcomes is None]
