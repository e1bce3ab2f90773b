"""Starts a rank from its launcher, and stands for its process where multiprocessing has one."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from multiprocessing import util
from typing import NoReturn, Protocol

from ddpsim.simulator.launching.launched import Body
from ddpsim.simulator.launching.launcher_line import Line, Started
from ddpsim.simulator.rank_processes.channel import Channel
from ddpsim.simulator.rank_processes.parcels import Arena
from ddpsim.simulator.rank_processes.rank_files import Files

_CODE = struct.Struct("<i")

_GLANCES = 10
"""Who looks more often whether a process has ended waits for it. Who prints processes as they are started does not."""


class Starter(Protocol):
    """The launcher, as a rank sees it that it starts."""

    @property
    def line(self) -> Line:
        """To the coordinator."""

    def begin(self) -> None:
        """Somebody waits for the ranks."""

    def run_rank(self, rank: int, body: Body, channel: Channel, arena: Arena, files: Files) -> NoReturn:
        """In the process of the rank: run it."""


class RankPopen:
    """The process of a rank; its exit code comes from the coordinator."""

    def __init__(self, launcher: Starter, rank: int, body: Body) -> None:
        self._launcher = launcher
        self.returncode: int | None = None
        self._glances = 0
        self.method = "fork" if body.is_forked else "spawn"
        util._flush_std_streams()  # type: ignore[attr-defined]
        mine, theirs = Channel.pair()
        arena_file, files = os.memfd_create("arena"), Files()
        arena = Arena(file=arena_file)
        self.pid = _fork_without_parent(lambda: launcher.run_rank(rank, body, theirs, arena, files))
        self.sentinel, told = os.pipe()
        given = [mine.fileno(), arena_file, files.output, files.errors, files.stack, told]
        launcher.line.send(Started(self.pid), given)
        mine.close()
        theirs.close()
        arena.close()
        files.close()
        os.close(arena_file)
        os.close(told)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, if it has ended."""
        self._glances += 1
        return self.wait(0.0) if self._glances > _GLANCES else self._code_within(0.0)

    def forget_glances(self) -> None:
        """One more rank is started: multiprocessing looks after all others then, and waits for none."""
        self._glances = 0

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it has ended."""
        self._launcher.begin()
        return self._code_within(timeout)

    def _code_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self.sentinel], [], [], timeout)[0]:
            data = os.read(self.sentinel, _CODE.size)
            self.returncode = _CODE.unpack(data)[0] if data else -9
        return self.returncode

    def terminate(self) -> None:
        """The coordinator ends all ranks when their world is over."""

    kill = terminate

    def close(self) -> None:
        """Nothing is left open but the sentinel, at which somebody may still wait."""


def exit_code_as_bytes(code: int) -> bytes:
    """What `RankPopen.wait` reads."""
    return _CODE.pack(code)


def _fork_without_parent(run: Callable[[], NoReturn]) -> int:
    """Fork a process that is an orphan at once, so that it becomes the coordinator's child; its number."""
    reading, writing = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if not pid:
            os.close(reading)
            os.close(writing)
            run()  # by its first message it is the coordinator's
        os.write(writing, pid.to_bytes(8, "little"))
        os._exit(0)
    os.close(writing)
    pid = int.from_bytes(os.read(reading, 8), "little")
    os.close(reading)
    os.waitpid(between, 0)
    return pid
