"""The supervisor's view of the process of its rank: the messages, the stderr and the exit of the process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from ddpsim.scenarios.jobs import job_rank as rank_process
from ddpsim.scenarios.jobs.job_rank import RankMessage
from ddpsim.scenarios.jobs.rank_report import RankReport
from ddpsim.scenarios.jobs.scenario_job import ScenarioJob
from ddpsim.scenarios.jobs.supervisor_notes import RankStarter
from ddpsim.scenarios.jobs.watched_job import processor_seconds

_POLL_SECONDS = 0.02
_ENDING_SECONDS = 2.0
"""How long a rank may take to end after the message END."""
_KEPT_LINES = 4
_MOST_READS = 16

_LOG_LINE = re.compile(
    rb"^(?:\[rank\d+\]:)?\[[WEIF]\d{4} |^terminate called |^  what\(\):|^Exception raised from |^frame #\d+: "
)
"""Matches log lines of torch and gloo. Such lines are not shown while the rank runs, and go into the report if the rank
dies."""

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
