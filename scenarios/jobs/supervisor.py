"""The supervisor of a rank: the process that the launcher starts. It forks the rank and reports how it ended.

A rank may die of a signal, or hang in code that holds the GIL. Its supervisor reports that through the store, where
rank 0's supervisor collects the reports of all ranks and machines. A supervisor exits normally whatever its rank does,
so the launcher does not end the others before they have reported.
"""

import contextlib
import multiprocessing
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from ddpsim.scenarios.jobs import job_rank as rank_process
from ddpsim.scenarios.jobs.job_rank import RankMessage, position_of_death
from ddpsim.scenarios.jobs.rank_progress import BUSY_SHARE, PATIENCE, ActiveClock
from ddpsim.scenarios.jobs.rank_report import RankEnding, RankPosition, RankReport
from ddpsim.scenarios.jobs.scenario_job import ScenarioJob
from ddpsim.scenarios.jobs.supervisor_notes import FAILED_TO_START, HUNG, Heartbeats, RankStarter, SupervisorStore
from ddpsim.scenarios.jobs.watched_job import processor_seconds
from ddpsim.simulator.ctrl_c import handle_signals

_START_SECONDS = 120.0
"""How long a rank may take to load its program and connect to the others."""
_ANSWER_SECONDS = 5.0
"""How long a rank may take to report its position."""
_STATUS_SECONDS = 120.0
"""How long rank 0's process may take to compute the exit status. For this it may have to train on one process."""
_NO_STATUS = 1
_SILENT_SECONDS = 5.0
"""How much longer than the time-out a rank may send nothing."""
_CHECK_GAP_SECONDS = 0.5
"""The longest normal time between two checks of a rank. A longer gap means that this process was stopped."""
_LEAST_SECONDS = 0.5
"""The shortest time that the other ranks have to report progress after a rank has ended."""


def supervise_rank(job: ScenarioJob, folder: str | None = None) -> tuple[RankReport, ...]:
    """Run and watch the rank that the environment variables name. On rank 0, return the reports of all ranks. When the
    launcher removes `folder`, the run ends."""
    with _supervised_rank(job, folder) as (notes, _):
        return notes.read_reports() if notes.rank == 0 else ()


def supervise_rank_to_status(job: ScenarioJob, conclude: Callable[[tuple[RankReport, ...]], int]) -> int:
    """Supervise a rank that torchrun has started.

    `conclude` computes the exit status on rank 0, and the processes of all ranks return it.
    """
    with _supervised_rank(job, None) as (notes, child):
        status = _NO_STATUS
        if notes.rank != 0:
            end = time.monotonic() + _STATUS_SECONDS
            while (found := notes.read_status()) is None and time.monotonic() < end:
                child.poll_process()
            return status if found is None else found
        try:
            status = conclude(notes.read_reports())
        finally:
            notes.write_status(status)
        return status


@contextmanager
def _supervised_rank(job: ScenarioJob, folder: str | None) -> "Iterator[tuple[SupervisorStore, RankChild]]":
    """Start the rank that the environment variables name, and wait until all ranks have ended."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    starter = RankStarter(os.getppid(), folder)
    ending = handle_signals(_exit_by_signal, signal.SIGTERM, signal.SIGINT)
    with ending, _exit_with_launcher(starter), start_rank_child(job, rank, starter) as child:
        notes = SupervisorStore.connect_to_store(rank, world_size, starter)
        heartbeats, clock = Heartbeats(notes), ActiveClock(_CHECK_GAP_SECONDS)
        notes.write_report(_watch_rank(child, notes, heartbeats, clock, job.timeout_seconds))
        _wait_for_all_ranks(child, notes, heartbeats, clock, job.timeout_seconds)
        yield notes, child
        notes.leave_store()


@contextmanager
def _exit_with_launcher(starter: RankStarter) -> Iterator[None]:
    """If the store is lost because the launcher of this process has ended, exit without an error."""
    try:
        yield
    except RuntimeError:  # all errors of a store
        starter.check_is_alive()
        raise


def _exit_by_signal(number: int, frame: object) -> None:
    """End this process by SystemExit, so that its rank ends with it."""
    raise SystemExit(128 + number)


_FROZEN = "its process does not answer: it is stopped, or in native code that holds the GIL"


def _watch_rank(
    child: "RankChild", notes: SupervisorStore, heartbeats: Heartbeats, clock: ActiveClock, timeout_seconds: float
) -> RankReport:
    """Watch a rank until the rank or the whole run has ended."""
    quiet = _IdleDetector(child, timeout_seconds)
    begun, has_started, asked = clock.active_seconds(), False, None
    while True:
        child.poll_process()
        is_dead, heard, now = child.status is not None, child.receive_messages(), clock.active_seconds()
        heartbeats.send_heartbeat(now)
        if reports := [each for each in heard if isinstance(each, RankReport)]:
            return reports[0]
        has_started = has_started or RankMessage.STARTED in heard
        if is_dead:
            return _death_report(child, has_started)
        if not has_started and now - begun > _START_SECONDS:
            return _silence_report(child, f"did not start within {_START_SECONDS:g} s", has_started=False)
        is_frozen = has_started and quiet.is_silent_too_long(heard, now)
        if asked is not None and (is_frozen or now - asked > _ANSWER_SECONDS):
            return _silence_report(child, _FROZEN)
        if has_started and quiet.report_idle_if_changed(notes) and (heard or is_frozen) and notes.are_all_idle():
            notes.mark_run_ended(HUNG)
        if asked is None and (why := notes.reason_of_end()):
            if why == FAILED_TO_START:
                return _silence_report(child, "was ended, as another one did not start")
            child.send_message(RankMessage.DESCRIBE)
            asked = now


class _IdleDetector:
    """Detects that a rank hangs, because it reports that it is idle or no longer sends anything."""

    def __init__(self, child: "RankChild", timeout_seconds: float) -> None:
        self._child = child
        self._timeout_seconds = timeout_seconds
        self._said_idle = self._is_idle = self._has_voted = False
        self._heard, self._computed = 0.0, 0.0
        """When the rank last sent a message, and how much CPU time it had used at that time."""

    def is_silent_too_long(self, heard: Sequence[RankMessage | RankReport], now: float) -> bool:
        """Return True if the rank has sent nothing for too long. A rank that computes may be silent longer, because
        native code may hold the GIL."""
        if heard:
            self._said_idle = heard[-1] is RankMessage.IDLE
            self._heard, self._computed = now, self._child.cpu_seconds()
        silent = now - self._heard
        is_frozen = silent > self._timeout_seconds + _SILENT_SECONDS and silent > self._allowed_silence(silent)
        # Its last message is outdated if it has moved on since, to code that blocks its watch thread.
        self._is_idle = is_frozen or (self._said_idle and silent < self._timeout_seconds / 2)
        return is_frozen

    def _allowed_silence(self, silent: float) -> float:
        is_computing = self._child.cpu_seconds() - self._computed > BUSY_SHARE * silent
        return PATIENCE * self._timeout_seconds if is_computing else 0.0

    def report_idle_if_changed(self, notes: SupervisorStore) -> bool:
        """Tell the other supervisors when the rank becomes idle or active again. Return True while the rank is idle."""
        if self._is_idle != self._has_voted:
            notes.set_idle(notes.rank, is_idle=self._is_idle)
            self._has_voted = self._is_idle
        return self._is_idle


def _death_report(child: "RankChild", has_started: bool) -> RankReport:
    child.forward_stderr()
    return RankReport(
        child.rank,
        RankEnding.DIED,
        time.time(),
        has_started,
        position=position_of_death(child.last_stack or ()),
        death=child.describe_death(),
        last_words=tuple(child.last_lines),
    )


def _silence_report(child: "RankChild", why: str, *, has_started: bool = True) -> RankReport:
    position = RankPosition(float("inf"), None, why, ())
    return RankReport(child.rank, RankEnding.HUNG, time.time(), has_started, position=position)


def _wait_for_all_ranks(
    child: "RankChild", notes: SupervisorStore, heartbeats: Heartbeats, clock: ActiveClock, timeout_seconds: float
) -> None:
    """Keep the rank and its connections until all ranks have ended. After the time-out the ended rank counts as idle.
    It counts so late because a rank that waits for a call of the ended rank should first report its own hang."""
    ended, has_voted = clock.active_seconds(), False
    while not notes.have_all_ended():
        child.poll_process()
        heartbeats.send_heartbeat(clock.active_seconds())
        if not has_voted and clock.active_seconds() - ended > max(timeout_seconds, _LEAST_SECONDS):
            notes.set_idle(notes.rank, is_idle=True)
            has_voted = True


_POLL_SECONDS = 0.02
_ENDING_SECONDS = 2.0
"""How long a rank may take to end after the message END."""
_KEPT_LINES = 4
_MOST_READS = 16

_LOG_LINE = re.compile(
    rb"^(?:\[rank\d+\]:)?\[[WEIF]\d{4} |^terminate called |^  what\(\):|^Exception raised from |^frame #\d+: "
)
"""Matches log lines of torch and gloo. They are not shown, and go into the report if the rank dies."""

_DEATH = b"Fatal Python error: "
"""Matches the first line that faulthandler writes when a process dies."""


@dataclass(slots=True)
class RankChild:
    """The process of a rank, as the rank's supervisor sees it."""

    rank: int
    process: int
    line: Connection
    stderr: int
    """The read end of the pipe for the rank's stderr."""
    starter: RankStarter
    status: int | None = None
    """The wait status of the process, as from os.waitpid; set once the process has died."""
    unread: bytes = b""
    last_lines: list[str] = field(default_factory=list)
    last_stack: list[str] | None = None
    """The stack that faulthandler wrote when a signal killed the process."""

    def poll_process(self) -> None:
        """Wait briefly, forward the rank's stderr, and check if the rank is alive.

        Raises SystemExit if the launcher has ended.
        """
        time.sleep(_POLL_SECONDS)
        self.forward_stderr()
        if self.status is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.status = status if process else None
        self.starter.check_is_alive()

    def receive_messages(self) -> list[RankMessage | RankReport]:
        """Return the messages that arrived since the last call."""
        words: list[RankMessage | RankReport] = []
        with contextlib.suppress(EOFError, OSError):
            while self.line.poll():
                words.append(self.line.recv())
        return words

    def send_message(self, word: RankMessage) -> None:
        """Send a message to the rank, if its process still listens."""
        with contextlib.suppress(OSError):
            self.line.send(word)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the rank has used; 0 on systems without /proc."""
        return processor_seconds(self.process)

    def describe_death(self) -> str:
        """Return a text on how the rank's process ended."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        if code >= 0:
            return f"exit status {code}"
        known = [number.name for number in signal.Signals if number == -code]
        return f"signal {known[0] if known else -code}"

    def end_gracefully(self) -> None:
        """Ask the rank's process to end; kill it if it does not end in time."""
        self.send_message(RankMessage.END)
        end = time.monotonic() + _ENDING_SECONDS
        while self.status is None and time.monotonic() < end:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.status = status if process else None
            time.sleep(_POLL_SECONDS / 4)
        self.kill_process()

    def kill_process(self) -> None:
        """Kill the rank's process, if it is alive, and the processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process, signal.SIGKILL)
        if self.status is None:
            os.kill(self.process, signal.SIGKILL)  # it may not have its own group yet
            _, self.status = os.waitpid(self.process, 0)

    def forward_stderr(self) -> None:
        """Forward what the rank has written to stderr. Once the rank is dead, also forward the unfinished last line."""
        for _ in range(_MOST_READS):  # it may write faster than this reads
            if not select.select([self.stderr], [], [], 0)[0] or not (text := os.read(self.stderr, 1 << 16)):
                break
            self._forward_lines(text)
        if self.status is not None and self.unread:
            self._forward_lines(b"\n")

    def _forward_lines(self, written: bytes) -> None:
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
def start_rank_child(job: ScenarioJob, rank: int, starter: RankStarter) -> Iterator[RankChild]:
    """Fork the process of the rank; the process is ended at the end of the block."""
    ours, its = multiprocessing.Pipe()
    stderr, its_stderr = os.pipe()
    sys.stdout.flush()
    process = os.fork()  # before this process has a connection or a thread
    if process == 0:
        ours.close()
        os.close(stderr)
        os.dup2(its_stderr, 2)
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)  # it connects to the store and never opens one
        rank_process.run_rank_process(job, rank, its)
    its.close()
    os.close(its_stderr)
    child = RankChild(rank, process, ours, stderr, starter)
    try:
        yield child
        child.end_gracefully()
    finally:
        child.kill_process()
        child.forward_stderr()
        ours.close()
        os.close(stderr)
