"""Programs that start their ranks themselves, as the coordinator sees them; `launcher.py` is the other side."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from ddpsim.simulator.choices import Start
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.launching.guardian import Guardian
from ddpsim.simulator.launching.launcher_detection import launches_by_strategy, may_launch
from ddpsim.simulator.launching.launcher_line import Begin, Done, Line, Refused, Started, StartsAgain
from ddpsim.simulator.launching.program_ranks import start_launcher
from ddpsim.simulator.launching.rank_popen import exit_code_as_bytes
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.rank_processes.channel import Channel
from ddpsim.simulator.rank_processes.children import Child
from ddpsim.simulator.rank_processes.external_processes import ExternalProcesses
from ddpsim.simulator.rank_processes.parcels import Arena
from ddpsim.simulator.rank_processes.process_config import ProcessConfig, sent
from ddpsim.simulator.rank_processes.rank_files import Files
from ddpsim.simulator.rank_processes.values import unpacked
from ddpsim.simulator.runtime.outcome import Raised
from ddpsim.simulator.virtual_gpus.announcement import Announcement

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.1
_IDLE_SECONDS = 1.0
"""A launcher that has started ranks and sleeps for so long waits for them in some way that does not say so."""


class Launch:
    """A program that runs as its own launcher, and the ranks that it has started."""

    def __init__(
        self,
        program: Script,
        world_size: int,
        gpus: int | None,
        start: Start,
        preload: tuple[str, ...],
        external_processes: str,
    ) -> None:
        """Start it. Raises UsageError if the system gives no process."""
        self.children: list[Child] = []
        self._told: list[int] = []
        """Where the exit codes of the ranks are told."""
        self._guardian = Guardian()
        self._line, theirs = Line.pair()
        config = ProcessConfig(
            coordinator=os.getpid(),
            world_size=world_size,
            program=program,
            is_observed=False,
            checks_replicas=False,
            is_program=True,
            is_launched=launches_by_strategy(program),
            announcement=Announcement(),
            gpus=gpus,
            start=start,
            preload=preload,
            external_processes=external_processes,
        )
        _adopt_orphans(True)
        try:
            self._launcher = start_launcher(config, self._guardian, theirs.fileno())
        except BaseException:
            _adopt_orphans(False)
            self._line.close()
            self._guardian.end()
            raise
        finally:
            theirs.close()
            config.announcement.close()

    def await_ranks(self, seconds: float) -> bool:
        """Wait until all ranks are started. False if the program starts none."""
        try:
            return self._await_ranks(seconds)
        finally:
            _adopt_orphans(False)

    def _await_ranks(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        idle_since, cpu = time.monotonic(), 0.0
        while time.monotonic() < end:
            message = self._hear(_POLL_SECONDS)
            if isinstance(message, Begin):
                return True
            if isinstance(message, Refused):
                raise UsageError(message.line)
            if message is not None and not isinstance(message, Started):
                return bool(self.children)
            now = self._launcher.core_seconds()
            if now - cpu > _POLL_SECONDS / 10 or message is not None:
                idle_since, cpu = time.monotonic(), now
            elif self.children and time.monotonic() - idle_since > _IDLE_SECONDS:
                return True
        return bool(self.children)

    def _hear(self, seconds: float) -> Any:
        """What the launcher says; None if it says nothing for a while."""
        if not select.select([self._line], [], [], seconds)[0]:
            return None
        message, files = self._line.receive()
        if isinstance(message, Started):
            channel, arena, output, errors, stack, told = files
            end = Channel(socket.socket(fileno=channel))
            made = Files((output, errors, stack))
            self.children.append(Child(len(self.children), message.pid, end, Arena(file=arena), made))
            self._told.append(told)
            self._guardian.guard(message.pid)
            os.close(arena)
        if message is None:
            self._launcher.check_broken()
            return Done(None)
        return message

    def begin(self, config: ProcessConfig) -> list[Child]:
        """Tell the ranks what they have to know, and return them."""
        for child in self.children:
            with suppress(OSError):  # it is gone, as the coordinator will see
                child.channel.send(sent(config))
        return self.children

    def forward_output(self) -> None:
        """Let the caller's own streams have what the launcher has written."""
        for stream, text in zip((sys.stdout, sys.stderr), self._launcher.new_output(), strict=True):
            stream.write(text)

    def end_well(self, seconds: float) -> Raised | None:
        """The ranks are over: let the program go on to its end, and return what it raised."""
        for child, told in zip(self.children, self._told, strict=True):
            with suppress(OSError):
                os.write(told, exit_code_as_bytes(_exit_code(child)))
            os.close(told)
        self._told = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            message = self._hear(_POLL_SECONDS)
            if isinstance(message, Refused):
                raise UsageError(message.line)
            if isinstance(message, StartsAgain):
                raise UsageError(
                    "the program starts ranks a second time, expected one world of ranks in a run, which has one "
                    "schedule and one trace: let one start do both, or run each by itself, by an argument"
                )
            if isinstance(message, Done):
                return message.raised
        return None

    def drop(self) -> None:
        """It is none that launches: what it has written until now its ranks will write again."""
        self._launcher.kill()
        self._launcher.new_output()
        self.close()

    def close(self) -> None:
        """End whatever is left."""
        for child in (self._launcher, *self.children):
            child.kill()
        self.forward_output()
        for child in (self._launcher, *self.children):
            child.close()
        self._line.close()
        for told in self._told:
            os.close(told)
        self._guardian.end()


def launched(
    program: Script,
    world_size: int,
    seconds: float,
    *,
    gpus: int | None,
    start: Start,
    preload: tuple[str, ...],
    external_processes: ExternalProcesses,
) -> Launch | None:
    """The program with the ranks that it has started; None if it leaves that to others."""
    if not may_launch(program):
        return None
    launch = Launch(program, world_size, gpus, start, preload, external_processes.address)
    try:
        if launch.await_ranks(seconds):
            if len(launch.children) == world_size or program.counts_ranks:
                launch.forward_output()
                return launch
            count = len(launch.children)
            raise UsageError(
                f"the program starts {count} rank{'' if count == 1 else 's'} itself, expected {world_size}: take world "
                f"size {count} (--world-size {count})"
            )
        external_processes.check()
    except BaseException:
        launch.close()
        raise
    launch.drop()
    return None


def _exit_code(child: Child) -> int:
    """As multiprocessing tells it."""
    if child.ended is None:
        return 1 if child.status is None else os.waitstatus_to_exitcode(child.status)
    if not child.ended.error:
        return 0
    try:
        error = unpacked(child.ended.error)
    except Exception:  # of a class that the rank has made
        return 1
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return 1


def _adopt_orphans(is_to: bool) -> None:
    """Whether processes whose parent has ended become ours."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_to))
