"""The supervisor of a rank: the process that the launcher starts, which forks the rank and says what became of it.

A rank may die of a signal, or hang in code that holds Python's lock. Its supervisor is left to tell so: through the
store, where rank 0's supervisor gathers the reports of all, also of those on other machines. No supervisor fails for
what its rank does, so the launcher has no reason to end the others before they have told.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from scenarios.agreement.outcome import Ending
from scenarios.processes.child import Child, started
from scenarios.processes.job import Job
from scenarios.processes.notes import FAILED_TO_START, Beats, Notes, Starter
from scenarios.processes.rank import Word
from scenarios.processes.report import Position, RankReport
from scenarios.processes.stacks import place_of_death

_START_SECONDS = 120.0
"""So long may a rank take to find its program and all others."""
_ANSWER_SECONDS = 5.0
"""So long may a rank take to say where it stands."""
_SILENT_SECONDS = 5.0
"""So much longer than the time-out may a rank say nothing at all."""


def supervise(job: Job, folder: str | None = None) -> tuple[RankReport, ...]:
    """Start the rank that the environment names, and see it through; on rank 0, what became of all ranks.

    `folder` is there for as long as the launcher wants the run.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    starter = Starter(os.getppid(), folder)
    with _ended_by_signals(), _ended_with_its(starter), started(job, rank, starter) as child:
        notes = Notes.connected(rank, world_size, starter)
        beats = Beats(notes)
        report = _see_through(child, notes, beats, job.timeout_seconds)
        notes.write(report)
        _wait_for_all(child, notes, beats)
        reports = notes.read_all() if rank == 0 else ()
        notes.leave()
    return reports


@contextmanager
def _ended_with_its(starter: Starter) -> Iterator[None]:
    """Let the loss of the store end this process quietly, where that is because its starter has ended."""
    try:
        yield
    except RuntimeError:  # every error of a store
        starter.check()
        raise


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT end this process by SystemExit, so that it takes the rank with it."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- what becomes of it -----------------------------------------------------------------------------------------------

_FROZEN = "its process does not answer: it is stopped, or in native code that holds Python's lock"


def _see_through(child: Child, notes: Notes, beats: Beats, timeout_seconds: float) -> RankReport:
    """Watch a rank until it has ended, or the run is over."""
    begun = heard_last = time.monotonic()
    has_started, asked = False, None
    while True:
        child.poll()
        is_dead, heard, now = child.status is not None, child.heard(), time.monotonic()
        beats.give(now)
        if reports := [each for each in heard if isinstance(each, RankReport)]:
            return reports[0]
        heard_last = now if heard else heard_last
        has_started = has_started or Word.STARTED in heard
        if is_dead:
            return _dead(child, has_started)
        if not has_started and now - begun > _START_SECONDS:
            return _silent(child, f"did not start within {_START_SECONDS:g} s", has_started=False)
        if has_started and now - heard_last > timeout_seconds + _SILENT_SECONDS:
            return _silent(child, _FROZEN)
        if asked is not None and now - asked > _ANSWER_SECONDS:
            return _silent(child, _FROZEN)
        if asked is None and (why := notes.why_over()):
            if why == FAILED_TO_START:
                return _silent(child, "was ended, as another one did not start")
            child.tell(Word.DESCRIBE)
            asked = now


def _dead(child: Child, has_started: bool) -> RankReport:
    child.read_rest()
    return RankReport(
        child.rank,
        Ending.DIED,
        time.time(),
        has_started,
        position=place_of_death(child.last_stack or ()),
        death=child.death(),
        last_words=tuple(child.last_lines),
    )


def _silent(child: Child, why: str, *, has_started: bool = True) -> RankReport:
    position = Position(float("inf"), None, why, ())
    return RankReport(child.rank, Ending.HUNG, time.time(), has_started, position=position)


def _wait_for_all(child: Child, notes: Notes, beats: Beats) -> None:
    """Keep the rank, and with it its connections, until all have ended."""
    while not notes.have_all_ended():
        child.poll()
        beats.give(time.monotonic())
