"""A job in progress: the processes of its ranks, and what has been heard of each."""

from __future__ import annotations

import pickle
import socket
from contextlib import ExitStack, suppress
from enum import Enum

from ddpsim.scenarios.agreement.outcome import Ending, RankOutcome
from ddpsim.scenarios.agreement.pool import messages
from ddpsim.scenarios.agreement.pool.job import Job
from ddpsim.scenarios.agreement.pool.rank import NotStarted, Started
from ddpsim.scenarios.agreement.pool.server_link import PoolError, ServerLink, ending_text
from ddpsim.scenarios.agreement.pool.stillness import Stillness, all_asleep
from ddpsim.simulator.errors import UsageError

_MARGIN_SECONDS = 5.0
"""How much longer than gloo's own time-out a rank may be silent."""


class _Stage(Enum):
    STARTING = "starting"
    STARTED = "started"
    """It has joined its group; once all have, they run."""
    DEAD = "dead"
    """It has ended without having said what came of it."""


class Team:
    """The ranks of one job, from their start until `end`."""

    def __init__(self, job: Job, server: ServerLink, *, timeout_seconds: float, now: float) -> None:
        self.job = job
        self._server = server
        self._silence_seconds = timeout_seconds + _MARGIN_SECONDS
        self._deadline = now + self._silence_seconds
        self._stillness = Stillness(job.still_seconds)
        self.next_look = now + self._stillness.interval_seconds
        self._is_running = False
        """Whether all have joined their group, and been told to go on."""
        self._ranks: list[_Stage | RankOutcome] = [_Stage.STARTING] * job.world_size
        self._statuses: tuple[int, ...] | None = None
        """What the processes have ended with."""
        self.channels, self._processes = _start(job, server, timeout_seconds)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return all(isinstance(of, RankOutcome) or of is _Stage.DEAD for of in self._ranks)

    def hear(self, channel: socket.socket, now: float) -> bool:
        """Take what a rank says; false if it will say nothing more. Raises PoolError if it cannot start."""
        rank = self.channels.index(channel)
        try:
            message, _ = messages.receive(channel)
        except (EOFError, OSError):
            if not self._is_running:
                raise self._not_started(rank, f"it ended with {self._status(rank)}") from None
            message = _Stage.DEAD
        if isinstance(message, NotStarted):
            raise self._not_started(rank, message.reason)
        self._ranks[rank] = _Stage.STARTED if isinstance(message, Started) else message
        if all(of is _Stage.STARTED for of in self._ranks):
            self._go()
        self._deadline = now + self._silence_seconds
        return isinstance(message, Started)

    def look(self, now: float) -> None:
        """See whether it still moves; if not, its unfinished ranks hang."""
        self.next_look = now + self._stillness.interval_seconds
        if not self._is_running:
            if now >= self._deadline:
                raise self._not_started(self._ranks.index(_Stage.STARTING), "it said nothing")
            return
        # Those that have returned count, too: what they have sent may still be on its way.
        alive = [process for process, of in zip(self._processes, self._ranks, strict=True) if of is not _Stage.DEAD]
        if self._stillness.look(asleep=all_asleep(alive)):
            self._give_up(f"nothing has moved for {self.job.still_seconds:g} s")
        elif now >= self._deadline:
            self._give_up(f"it has said nothing for {self._silence_seconds:g} s")

    def end(self) -> tuple[RankOutcome, ...]:
        """End the processes, and return what has become of each rank; one that was still running hangs."""
        self._give_up("it was not waited for")
        return tuple(
            of if isinstance(of, RankOutcome) else RankOutcome(Ending.DIED, error=ending_text(status))
            for of, status in zip(self._ranks, self._end(), strict=True)
        )

    def _end(self) -> tuple[int, ...]:
        if self._statuses is None:
            for channel in self.channels:
                channel.close()
            self._statuses = self._server.end(self._processes)
        return self._statuses

    def _give_up(self, why: str) -> None:
        hung = RankOutcome(Ending.HUNG, error=why)
        self._ranks = [of if isinstance(of, RankOutcome) or of is _Stage.DEAD else hung for of in self._ranks]

    def _go(self) -> None:
        self._is_running = True
        for channel in self.channels:
            with suppress(OSError):  # it has died, which will be heard
                channel.send(b"!")

    def _status(self, rank: int) -> str:
        return ending_text(self._end()[rank])

    def _not_started(self, rank: int, reason: str) -> PoolError:
        return PoolError(
            f"rank {rank} of {self.job.world_size} has not started: {reason}; expected it to join its group: "
            "see whether the machine is short of memory or processes"
        )


def _start(job: Job, server: ServerLink, timeout_seconds: float) -> tuple[list[socket.socket], tuple[int, ...]]:
    body = _pickled(job)
    with ExitStack() as until_started, ExitStack() as theirs:
        pairs = [_pair(job.world_size, until_started, theirs) for _ in range(job.world_size)]
        module = getattr(job.function, "__module__", None) or "builtins"
        processes = server.start([their for _, their in pairs], module, timeout_seconds)
        until_started.pop_all()
    channels = [ours for ours, _ in pairs]
    for channel in channels:
        with suppress(OSError):  # it has died already, which will be heard
            messages.send_pickled(channel, body)
    return channels, processes


def _pair(world_size: int, until_started: ExitStack, theirs: ExitStack) -> tuple[socket.socket, socket.socket]:
    try:
        ours, their = socket.socketpair()
    except OSError as error:
        raise PoolError(
            f"found no way to talk to {world_size} ranks ({error}), expected a socket for each: "
            "take a smaller world size or fewer teams, or raise the limit of open files"
        ) from None
    return until_started.enter_context(ours), theirs.enter_context(their)


def _pickled(job: Job) -> bytes:
    try:
        return pickle.dumps((job.function, job.args))
    except Exception as error:
        raise UsageError(
            f"job is {job.function!r} ({type(error).__name__}: {error}), expected what can be pickled: "
            "give a function of a module, and plain values"
        ) from None
