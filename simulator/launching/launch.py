"""Runs programs that start their ranks themselves, for the coordinator; `launcher.py` runs in their processes."""

import os
import select
import socket
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.launching import launcher_line
from ddpsim.simulator.launching.launcher_detection import may_start_own_ranks, uses_trainer_strategy
from ddpsim.simulator.launching.program_ranks import Guardian, adopting_orphans, start_launcher
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.rank_processes.channel import MessageChannel, PacketConnection
from ddpsim.simulator.rank_processes.children import ChildProcess
from ddpsim.simulator.rank_processes.external_processes import ExternalProcesses
from ddpsim.simulator.rank_processes.messages import unpickle_value
from ddpsim.simulator.rank_processes.parcels import SharedArena
from ddpsim.simulator.rank_processes.process_config import ProcessConfig, fields_for_launched_rank
from ddpsim.simulator.rank_processes.rank_files import RankFiles
from ddpsim.simulator.runtime.outcome import RaisedError

_POLL_SECONDS = 0.1
_FEWER_RANKS_IDLE_SECONDS = 5.0
"""The same while it has started fewer ranks than expected: it may wait for the disk, to load what starts the next."""
_IDLE_SECONDS = 1.0
"""A launcher without CPU use for this long after it started ranks waits in a way that ddpsim does not replace."""


class LauncherRun:
    """A run of a program that starts its ranks itself (a launcher), and of these ranks."""

    def __init__(self, config: ProcessConfig) -> None:
        """Start the program. Raises UsageError if the system starts no process."""
        self.children: list[ChildProcess] = []
        self._world_size = config.world_size
        self._exit_files: list[int] = []
        """The pipes from which the launcher reads the exit codes of the ranks."""
        self._guardian = Guardian()
        self._line, theirs = PacketConnection.pair()
        self._adopting = ExitStack()
        self._adopting.enter_context(adopting_orphans())
        try:
            self._launcher = start_launcher(config, self._guardian, theirs.fileno())
        except BaseException:
            self._adopting.close()
            self._line.close()
            self._guardian.kill_groups()
            raise
        finally:
            theirs.close()

    def await_ranks(self, seconds: float) -> bool:
        """Wait until all ranks are started; return whether the program has started any."""
        end = time.monotonic() + seconds
        idle_since, cpu = time.monotonic(), 0.0
        with self._adopting:
            while time.monotonic() < end:
                message = self._receive_message(_POLL_SECONDS)
                if isinstance(message, launcher_line.BeginRanks):
                    return True
                if isinstance(message, launcher_line.LaunchRejected):
                    raise UsageError(message.line)
                if message is not None and not isinstance(message, launcher_line.StartedRank):
                    break
                now = self._launcher.core_seconds()
                if now - cpu > _POLL_SECONDS / 10 or message is not None:
                    idle_since, cpu = time.monotonic(), now
                elif self.children and time.monotonic() - idle_since > self._idle_seconds():
                    return True
        return bool(self.children)

    def _idle_seconds(self) -> float:
        return _IDLE_SECONDS if len(self.children) == self._world_size else _FEWER_RANKS_IDLE_SECONDS

    def _receive_message(self, seconds: float) -> Any:
        """Wait for a message of the launcher, and return it; None if no message arrives in time."""
        if not select.select([self._line], [], [], seconds)[0]:
            return None
        message, files = self._line.receive()
        if isinstance(message, launcher_line.StartedRank):
            channel, arena, *own, exit_file = files
            end = MessageChannel(socket.socket(fileno=channel))
            rank = len(self.children)
            self.children.append(ChildProcess(rank, message.pid, end, SharedArena(file=arena), RankFiles(*own)))
            self._exit_files.append(exit_file)
            self._guardian.add_process_group(message.pid)
            os.close(arena)
        if message is None:
            self._launcher.raise_internal_error()
            return launcher_line.ProgramEnded(None)
        return message

    def configure_ranks(self, config: ProcessConfig) -> list[ChildProcess]:
        """Send the ranks their configuration, and return the processes of the ranks."""
        for child in self.children:
            with suppress(OSError):  # the rank is gone, which the coordinator notices
                child.channel.send(fields_for_launched_rank(config))
        return self.children

    def forward_output(self) -> None:
        """Copy the launcher's output to the caller's own streams."""
        for stream, text in zip((sys.stdout, sys.stderr), self._launcher.new_output(), strict=True):
            stream.write(text)

    def finish_program(self, seconds: float) -> RaisedError | None:
        """After the ranks have ended: run the program to its end, and return its exception."""
        for child, exit_file in zip(self.children, self._exit_files, strict=True):
            with suppress(OSError):
                os.write(exit_file, launcher_line.EXIT_CODE.pack(_exit_code(child)))
            os.close(exit_file)
        self._exit_files = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            message = self._receive_message(_POLL_SECONDS)
            if isinstance(message, launcher_line.LaunchRejected):
                raise UsageError(message.line)
            if isinstance(message, launcher_line.SecondStartReport):
                raise UsageError(
                    "the program starts ranks a second time, expected one world of ranks in a run, which has one "
                    "schedule and one trace: let one start do both, or run each by itself, by an argument"
                )
            if isinstance(message, launcher_line.ProgramEnded):
                return message.raised
        return None

    def discard_program(self) -> None:
        """End a program that has started no ranks, and discard its output: the program runs again as each rank."""
        self._launcher.kill_process()
        self._launcher.new_output()
        self.close()

    def close(self) -> None:
        """End the launcher and its ranks, and release their files."""
        for child in (self._launcher, *self.children):
            child.kill_process()
        self.forward_output()
        for child in (self._launcher, *self.children):
            child.release_resources()
        self._line.close()
        for exit_file in self._exit_files:
            os.close(exit_file)
        self._guardian.kill_groups()


def start_own_ranks(config: ProcessConfig, seconds: float, external_processes: ExternalProcesses) -> LauncherRun | None:
    """Run a program until it has started its ranks, and return that run; None if it does not start ranks itself."""
    program = config.program
    if not isinstance(program, Script) or not may_start_own_ranks(program):
        return None
    launch = LauncherRun(config._replace(is_launched=uses_trainer_strategy(program)))
    try:
        if launch.await_ranks(seconds):
            if len(launch.children) == config.world_size or program.counts_ranks:
                launch.forward_output()
                return launch
            count = len(launch.children)
            raise UsageError(
                f"the program starts {count} rank{'' if count == 1 else 's'} itself, expected {config.world_size}: "
                f"take world size {count} (--world-size {count})"
            )
        external_processes.raise_if_reported()
    except BaseException:
        launch.close()
        raise
    launch.discard_program()
    return None


def _exit_code(child: ChildProcess) -> int:
    """Return the exit code of a rank as multiprocessing defines it."""
    if child.ended is None:
        return 1 if child.status is None else os.waitstatus_to_exitcode(child.status)
    if not child.ended.error:
        return 0
    try:
        error = unpickle_value(child.ended.error)
    except Exception:  # its class exists only in the rank
        return 1
    return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
