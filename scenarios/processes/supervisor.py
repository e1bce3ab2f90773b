"""The supervisor of a rank: the process that the launcher starts, which forks the rank and says what became of it.

A rank may die of a signal, or hang in code that holds Python's lock. Its supervisor is left to tell so: through the
store, where rank 0's supervisor gathers the reports of all, also of those on other machines. No supervisor fails for
what its rank does, so the launcher has no reason to end the others before they have told.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import cast

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from scenarios.agreement.outcome import Ending
from scenarios.processes import rank as rank_process
from scenarios.processes.job import Job
from scenarios.processes.rank import Word
from scenarios.processes.report import Position, RankReport
from scenarios.processes.stacks import place_of_death
from simulator import UsageError

_POLL_SECONDS = 0.02
_START_SECONDS = 120.0
"""So long may a rank take to find its program and all others."""
_ANSWER_SECONDS = 2.0
"""So long may a rank take to say where it stands."""
_SILENT_SECONDS = 5.0
"""So much longer than the time-out may a rank say nothing at all."""
_STORE_SECONDS, _TRY_SECONDS = 60.0, 5.0
"""So long is a store waited for, in tries that are so long."""
_KEPT_LINES = 4

_LOG_LINE = re.compile(
    rb"^(?:\[rank\d+\]:)?\[[WEIF]\d{4} |^terminate called |^  what\(\):|^Exception raised from |^frame #\d+: "
)
"""Of torch and gloo. They stand in the report if the rank dies of them."""

_DEATH = b"Fatal Python error: "
"""How faulthandler begins."""

_HUNG, _FAILED_TO_START = b"hung", b"failed to start"
"""Why a run is over before all ranks have ended."""


def supervise(job: Job, folder: str | None = None) -> tuple[RankReport, ...]:
    """Start the rank that the environment names, and see it through; on rank 0, what became of all ranks.

    `folder` is there for as long as the launcher wants the run.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    starter = Starter(os.getppid(), folder)
    with _ended_by_signals(), _ended_with_its(starter), _started(job, rank, starter) as child:
        notes = Notes.connected(rank, world_size, starter)
        report = _see_through(child, notes, job.timeout_seconds)
        notes.write(report)
        _wait_for_all(child, notes)
        reports = notes.read_all() if rank == 0 else ()
        notes.leave()
    return reports


@dataclass(frozen=True, slots=True)
class Starter:
    """Who started this process and wants it: the launcher, and the process `parent` in between."""

    parent: int
    folder: str | None

    def check(self) -> None:
        """Raise SystemExit if it has ended, or has given up while it was still starting others."""
        launcher = multiprocessing.parent_process()
        has_died = os.getppid() != self.parent or (launcher is not None and not launcher.is_alive())
        if has_died or (self.folder is not None and not os.path.isdir(self.folder)):
            raise SystemExit(1)


# --- the notes in the store -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Notes:
    """What supervisors tell each other."""

    rank: int
    world_size: int
    store: Store
    is_host: bool

    @classmethod
    def connected(cls, rank: int, world_size: int, starter: Starter) -> Notes:
        """Connect to the launcher's store; without a launcher, rank 0 opens one. Raises UsageError if it cannot."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
        end = time.monotonic() + _STORE_SECONDS
        while True:
            try:
                store = _store(address, port, is_host)
            except (RuntimeError, ValueError, OSError) as error:
                starter.check()
                if is_host or time.monotonic() > end:
                    raise UsageError(_no_store_text(rank, address, port, is_host, error)) from error
            else:
                attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
                return cls(rank, world_size, PrefixStore(f"ddpsim/{attempt}", store), is_host)

    def write(self, report: RankReport) -> None:
        """Say what became of this rank."""
        if not report.has_started:
            self.end_for_all(_FAILED_TO_START)
        elif report.ending is Ending.HUNG:
            self.end_for_all(_HUNG)
        self._set(f"rank/{report.rank}", pickle.dumps(report))
        self.store.add("ended", 1)

    def end_for_all(self, why: bytes) -> None:
        """The run is over."""
        self._set("over", why)

    def why_over(self) -> bytes | None:
        """Why the run is over; None if it is not."""
        return self.store.get("over") if self.store.check(["over"]) else None

    def have_all_ended(self) -> bool:
        """True once every rank has a report."""
        ended: int = self.store.add("ended", 0)
        return ended >= self.world_size

    def read_all(self) -> tuple[RankReport, ...]:
        """The reports, by rank."""
        return tuple(pickle.loads(self.store.get(f"rank/{rank}")) for rank in range(self.world_size))

    def _set(self, key: str, value: bytes) -> None:
        cast("Callable[[str, bytes], None]", self.store.set)(key, value)  # its stubs know only text

    def leave(self) -> None:
        """Say that this supervisor needs the store no more; who hosts it waits for the others, for a while."""
        left, end = self.store.add("left", 1), time.monotonic() + _ANSWER_SECONDS
        while self.is_host and left < self.world_size and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            left = self.store.add("left", 0)


def _store(address: str, port: int, is_host: bool) -> Store:
    seconds = timedelta(seconds=_TRY_SECONDS)
    return TCPStore(address, port, is_master=is_host, timeout=seconds, wait_for_workers=False)


def _no_store_text(rank: int, address: str, port: int, is_host: bool, error: Exception) -> str:
    does, expected = ("open", "a free port") if is_host else ("reach", "rank 0 or torchrun to have opened it")
    return (
        f"rank {rank} cannot {does} the store at {address}:{port} ({str(error).splitlines()[0]}), expected {expected}: "
        "set MASTER_ADDR and MASTER_PORT to one, or start by torchrun, which finds one"
    )


# --- the process of the rank ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Child:
    """The process of a rank, as its supervisor sees it."""

    rank: int
    process: int
    line: Connection
    stderr: int
    """The end to read from of what it writes there."""
    starter: Starter
    status: int | None = None
    """What waiting for it gave, once it has died."""
    unread: bytes = b""
    last_lines: list[str] = field(default_factory=list)
    last_stack: list[str] | None = None
    """What faulthandler wrote of a process that died of a signal."""

    def poll(self) -> None:
        """Wait a moment; pass on what it has written, and see whether it lives. Raises SystemExit without a parent."""
        time.sleep(_POLL_SECONDS)
        self.read_rest()
        if self.status is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.status = status if process else None
        self.starter.check()

    def heard(self) -> Word | RankReport | None:
        """What it says; None if nothing."""
        try:
            return self.line.recv() if self.line.poll() else None
        except (EOFError, OSError):
            return None

    def tell(self, word: Word) -> None:
        """Say a word to it, if it still listens."""
        with contextlib.suppress(OSError):
            self.line.send(word)

    def death(self) -> str:
        """How it has ended, in words."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def end(self) -> None:
        """Let it end; kill it where it does not."""
        self.tell(Word.END)
        end = time.monotonic() + _ANSWER_SECONDS
        while self.status is None and time.monotonic() < end:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.status = status if process else None
            time.sleep(_POLL_SECONDS / 4)
        self.kill()

    def kill(self) -> None:
        """Kill it, if it is not dead, and forget it."""
        if self.status is None:
            os.kill(self.process, signal.SIGKILL)
            _, self.status = os.waitpid(self.process, 0)

    def read_rest(self) -> None:
        """Pass on what it has written to stderr so far."""
        while select.select([self.stderr], [], [], 0)[0] and (text := os.read(self.stderr, 1 << 16)):
            self._pass_on(text)

    def _pass_on(self, written: bytes) -> None:
        *lines, self.unread = (self.unread + written).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if line.startswith(_DEATH):
                self.last_stack = []
            elif self.last_stack is not None:
                self.last_stack.append(text)
            else:
                self.last_lines = [*self.last_lines, text][-_KEPT_LINES:]
                if not _LOG_LINE.match(line):
                    os.write(2, line + b"\n")


@contextmanager
def _started(job: Job, rank: int, starter: Starter) -> Iterator[_Child]:
    """Fork the rank; it does not outlive the block."""
    ours, its = multiprocessing.Pipe()
    stderr, its_stderr = os.pipe()
    sys.stdout.flush()
    process = os.fork()  # before this process has a connection or a thread
    if process == 0:
        ours.close()
        os.close(stderr)
        os.dup2(its_stderr, 2)
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)  # it connects, whoever opens it
        rank_process.run(job, rank, its)
    its.close()
    os.close(its_stderr)
    child = _Child(rank, process, ours, stderr, starter)
    try:
        yield child
        child.end()
    finally:
        child.kill()
        ours.close()
        os.close(stderr)


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


def _see_through(child: _Child, notes: Notes, timeout_seconds: float) -> RankReport:
    """Watch a rank until it has ended, or the run is over."""
    begun = heard_last = time.monotonic()
    has_started, asked = False, None
    while True:
        child.poll()
        heard = child.heard()
        if isinstance(heard, RankReport):
            return heard
        now = time.monotonic()
        heard_last = now if heard else heard_last
        has_started = has_started or heard is Word.STARTED
        if child.status is not None:
            return _last_report(child, has_started)
        if not has_started and now - begun > _START_SECONDS:
            return _silent(child, f"did not start within {_START_SECONDS:g} s", has_started=False)
        if has_started and asked is None and now - heard_last > timeout_seconds + _SILENT_SECONDS:
            return _silent(child, _FROZEN)
        if asked is None and (why := notes.why_over()):
            if why == _FAILED_TO_START:
                return _silent(child, "was ended, as another one did not start")
            child.tell(Word.DESCRIBE)
            asked = now
        if asked is not None and now - asked > _ANSWER_SECONDS:
            return _silent(child, _FROZEN)


_FROZEN = "its process does not answer: it is stopped, or in native code that holds Python's lock"


def _last_report(child: _Child, has_started: bool) -> RankReport:
    """Of a process that is dead: what it still said, or how it died."""
    while (heard := child.heard()) is not None:
        if isinstance(heard, RankReport):
            return heard
        has_started = has_started or heard is Word.STARTED
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


def _silent(child: _Child, why: str, *, has_started: bool = True) -> RankReport:
    position = Position(float("inf"), None, why, ())
    return RankReport(child.rank, Ending.HUNG, time.time(), has_started, position=position)


def _wait_for_all(child: _Child, notes: Notes) -> None:
    """Keep the rank, and with it its connections, until all have ended."""
    while not notes.have_all_ended():
        child.poll()
