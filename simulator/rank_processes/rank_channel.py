"""A rank's end of its channel: used by its own process alone, and by one exchange at a time."""

from __future__ import annotations

import os
import signal
from typing import Any

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.rank_processes.channel import Channel
from ddpsim.simulator.rank_processes.in_children import sitecustomize as in_children

_NAMES = ("ALRM", "CHLD", "HUP", "INT", "IO", "PROF", "QUIT", "TERM", "USR1", "USR2", "VTALRM", "WINCH")
_OF_PROGRAMS = frozenset(getattr(signal, f"SIG{name}") for name in _NAMES)


class RankChannel:
    """What a rank says to the coordinator and hears from it."""

    def __init__(self, channel: Channel, rank: int) -> None:
        self._channel = channel
        self._rank = rank
        self._process = os.getpid()

    def send(self, value: Any) -> None:
        """Say something that is not answered."""
        if os.getpid() != self._process:
            line = (
                f"a process that rank {self._rank} has forked communicates, expected the rank alone: "
                "communicate in the rank, or make the process a rank of its own (mp.spawn)"
            )
            in_children.tell(line)
            raise UsageError(line)
        self._channel.send(value)

    def receive(self) -> Any:
        """Wait for what the coordinator says; where it is gone there is nobody to run for."""
        try:
            return self._channel.receive()
        except EOFError:
            os._exit(1)

    def exchange(self, value: Any) -> Any:
        """Say something, and wait for the answer."""
        self.send(value)
        return self.receive()


class Signals:
    """Holds back the signals of a program while a request is under way.

    A handler of the program's may ask for something itself, or raise: in the middle of a request it would be taken for
    a part of that. So it runs as soon as the request is served, as it would after a call into native code.
    """

    def __init__(self) -> None:
        self._before: dict[int, set[Any]] = {}
        """What each thread held back itself, by number, while more is held back."""

    def hold_back(self, number: int) -> None:
        """A thread's request begins, or goes on."""
        if number not in self._before:
            self._before[number] = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_PROGRAMS)

    def let_in(self, number: int) -> None:
        """A thread's request is served. What its program's handlers raise comes out of here."""
        before = self._before.pop(number, None)
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
