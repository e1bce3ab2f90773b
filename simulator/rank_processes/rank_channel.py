"""A rank's end of its channel: used by its own process alone, and by one exchange at a time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ddpsim.simulator.debugging.breakpoints import Breakpoints
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.rank_processes.channel import Channel
from ddpsim.simulator.rank_processes.debugger_messages import Look
from ddpsim.simulator.rank_processes.in_children import sitecustomize as in_children
from ddpsim.simulator.rank_processes.messages import Written
from ddpsim.simulator.rank_processes.rank_files import Files

_NAMES = ("ALRM", "CHLD", "HUP", "INT", "IO", "PROF", "QUIT", "TERM", "USR1", "USR2", "VTALRM", "WINCH")
_OF_PROGRAMS = frozenset(getattr(signal, f"SIG{name}") for name in _NAMES)
_ALL = Written(sys.maxsize, sys.maxsize)


class RankChannel:
    """Sends messages of a rank to the coordinator, and receives its answers."""

    def __init__(self, channel: Channel, rank: int, files: Files) -> None:
        self._channel = channel
        self._rank = rank
        self._files = files
        self._process = os.getpid()
        self.heed_debugger: Callable[[Look | Breakpoints], None] | None = None
        """Does what a debugger in another rank asks for, while this one waits for something."""
        self.is_in_use = False
        """Something is being said, or its answer is awaited: what that needs of Python may import a module.

        Whoever left it then would leave the answer to what it says next.
        """

    def send(self, value: Any) -> None:
        """Send a message that is not answered."""
        if os.getpid() != self._process:
            line = (
                f"a process that rank {self._rank} has forked communicates, expected the rank alone: "
                "communicate in the rank, or make the process a rank of its own (mp.spawn)"
            )
            in_children.tell(line)
            raise UsageError(line)
        before, self.is_in_use = self.is_in_use, True
        try:
            self._channel.send((value, self._written()))
        finally:
            self.is_in_use = before

    def _written(self) -> Written:
        try:
            return Written(*[os.lseek(file, 0, os.SEEK_CUR) for file in (self._files.output, self._files.errors)])
        except OSError:  # the program has closed whatever was open
            return _ALL

    def receive(self) -> Any:
        """Wait for a message of the coordinator; if the coordinator is gone, the rank ends."""
        before, self.is_in_use = self.is_in_use, True
        try:
            while isinstance(said := self._channel.receive(), (Look, Breakpoints)) and self.heed_debugger is not None:
                self.heed_debugger(said)
            return said
        except EOFError:
            os._exit(1)
        finally:
            self.is_in_use = before

    def exchange(self, value: Any) -> Any:
        """Send a message, and wait for the answer."""
        before, self.is_in_use = self.is_in_use, True  # also from one to the other
        try:
            self.send(value)
            return self.receive()
        finally:
            self.is_in_use = before


class Signals:
    """Holds back the signals of a program while a request is in progress.

    A handler of the program may make a request itself, or raise: in the middle of a request that would be taken for a
    part of it. So the handler runs as soon as the request is served, as it would after a call into native code.
    """

    def __init__(self) -> None:
        self._before: dict[int, set[Any]] = {}
        """What each thread held back itself, by number, while more is held back."""

    def hold_back(self, number: int) -> None:
        """A thread's request begins, or goes on."""
        if number not in self._before:
            self._before[number] = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_PROGRAMS)

    @contextmanager
    def held_back(self, number: int) -> Iterator[None]:
        """While a thread says something; a request of it may be under way, and goes on then."""
        if number in self._before:
            yield
            return
        self.hold_back(number)
        try:
            yield
        finally:
            self.let_in(number)

    def let_in(self, number: int) -> None:
        """A thread's request is served. What its program's handlers raise comes out of here."""
        before = self._before.pop(number, None)
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
