"""A rank's connection to the coordinator: only the rank's process uses it, for one exchange at a time."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ddpsim.simulator.debugging.breakpoints import AllBreakpoints
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.rank_processes.channel import MessageChannel
from ddpsim.simulator.rank_processes.in_children import sitecustomize as in_children
from ddpsim.simulator.rank_processes.messages import OpenDebugger, WrittenBytes
from ddpsim.simulator.rank_processes.rank_files import RankFiles

_NAMES = ("ALRM", "CHLD", "HUP", "INT", "IO", "PROF", "QUIT", "TERM", "USR1", "USR2", "VTALRM", "WINCH")
_OF_PROGRAMS = frozenset(getattr(signal, f"SIG{name}") for name in _NAMES)
_ALL = WrittenBytes(sys.maxsize, sys.maxsize)


class RankChannel:
    """Sends messages of a rank to the coordinator, and receives its answers."""

    def __init__(self, channel: MessageChannel, rank: int, files: RankFiles) -> None:
        self._channel = channel
        self._rank = rank
        self._files = files
        self._process = os.getpid()
        self.heed_debugger: Callable[[OpenDebugger | AllBreakpoints], None] | None = None
        """A function that answers a debugger in another rank, while this rank waits for an answer."""
        self.is_in_use = False
        """True during an exchange of messages: to leave the program now would give the answer to a later message."""

    def send_message(self, value: Any) -> None:
        """Send a message that is not answered."""
        if os.getpid() != self._process:
            line = (
                f"a process that rank {self._rank} has forked communicates, expected only the rank to: "
                "communicate in the rank, or start the process as a rank (mp.spawn)"
            )
            in_children.report_to_coordinator(line)
            raise UsageError(line)
        before, self.is_in_use = self.is_in_use, True
        try:
            self._channel.send((value, self._written_bytes()))
        finally:
            self.is_in_use = before

    def _written_bytes(self) -> WrittenBytes:
        try:
            return WrittenBytes(*[os.lseek(file, 0, os.SEEK_CUR) for file in (self._files.output, self._files.errors)])
        except OSError:  # the program has closed its streams
            return _ALL

    def receive_message(self) -> Any:
        """Wait for a message of the coordinator, and return it; end the rank if the coordinator is gone."""
        before, self.is_in_use = self.is_in_use, True
        try:
            while (
                isinstance(value := self._channel.receive(), (OpenDebugger, AllBreakpoints))
                and self.heed_debugger is not None
            ):
                self.heed_debugger(value)
            return value
        except EOFError:
            os._exit(1)
        finally:
            self.is_in_use = before

    def exchange_messages(self, value: Any) -> Any:
        """Send a message, and wait for the answer."""
        before, self.is_in_use = self.is_in_use, True  # also between the two
        try:
            self.send_message(value)
            return self.receive_message()
        finally:
            self.is_in_use = before


class SignalBlocker:
    """Blocks the signals of a program during a request. A signal handler may make a request itself, or raise, which
    would mix with the request in progress. So the handler runs after the request."""

    def __init__(self) -> None:
        self._before: dict[int, set[Any]] = {}
        """The signals that each thread blocked before its request, by the thread's number."""

    def block_signals(self, number: int) -> None:
        """Block signals: a thread's request begins or continues."""
        if number not in self._before:
            self._before[number] = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_PROGRAMS)

    @contextmanager
    def signals_blocked(self, number: int) -> Iterator[None]:
        """Block signals in the `with` block; they stay blocked after it if a request of the thread is in progress."""
        if number in self._before:
            yield
            return
        self.block_signals(number)
        try:
            yield
        finally:
            self.unblock_signals(number)

    def unblock_signals(self, number: int) -> None:
        """Unblock signals after a thread's request. Exceptions of the program's handlers are raised here."""
        before = self._before.pop(number, None)
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
