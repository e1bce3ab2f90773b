"""What a program that starts its ranks itself says to the coordinator, and the line it says it by."""

from __future__ import annotations

import pickle
import socket
from typing import Any, NamedTuple

from ddpsim.simulator.runtime.outcome import Raised


class Started(NamedTuple):
    """A rank waits to begin. Its files come with it, in the order of `RankPopen`."""

    pid: int


class Begin(NamedTuple):
    """All ranks are started, and somebody waits for them."""


class MakesGroup(NamedTuple):
    """The program makes a group itself, without starting a rank: it is none that launches."""


class StartsAgain(NamedTuple):
    """The program starts ranks once more, after those that have begun."""


class Refused(NamedTuple):
    """The program starts its ranks in a way that has no simulation."""

    line: str
    """What was found, what was expected, what to do."""


class Done(NamedTuple):
    """The program is over."""

    raised: Raised | None


class Line:
    """Packets between the launcher and the coordinator."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """The number of its file."""
        return self._end.fileno()

    @staticmethod
    def pair() -> tuple[Line, Line]:
        """Two ends."""
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Line(first), Line(second)

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def send(self, message: NamedTuple, files: list[int]) -> None:
        """Send a message with files."""
        socket.send_fds(self._end, [pickle.dumps(message)], files)

    def receive(self) -> tuple[Any, list[int]]:
        """A message with its files; None if the other end is closed."""
        data, files, _, _ = socket.recv_fds(self._end, 1 << 17, 8)
        return (pickle.loads(data) if data else None), list(files)
